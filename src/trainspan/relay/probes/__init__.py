"""In: what the drivers of this host say when they are asked. Out: readings of its devices, in declared metrics.

Never: a thread, an exception, a list of processes; a device that another relay speaks for.
"""
