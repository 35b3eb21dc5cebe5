"""In: a framework or another library, imported. Out: what only it knows, as events of the rank; one file each.

Never: a thread, a second subscription for what a hook sees, anything that waits for a device or another rank.
"""
