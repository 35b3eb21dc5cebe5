"""In: what another library tells its subscribers. Out: the same as events of the rank.

Never: a thread, a second subscription for what a hook sees, a value that has to be asked for.
"""
