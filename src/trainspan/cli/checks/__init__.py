"""In: this machine, this Python, the environment. Out: findings, each with what to do about it.

Never: an import of torch; a file or folder that stays behind.
"""
