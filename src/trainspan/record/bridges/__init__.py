"""In: a framework, imported. Out: its epochs, global steps, logged scalars, checkpoints and evaluations; one file each.

Never: what the hooks of torch see already; anything that waits for a device or for another rank.
"""
