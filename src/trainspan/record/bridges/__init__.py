"""In: what another library or a framework tells its subscribers. Out: the same as marks and events; one file each.

Never: a thread, what the hooks of torch see already, anything that waits for a device or for another rank.
"""
