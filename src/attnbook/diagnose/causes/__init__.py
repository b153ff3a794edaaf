"""What goes wrong with attention, each thing once, and which of it explains what came.

A wrong formula is an entry of ``mistakes``, a slip of a kernel one of ``faults``; ``registry`` has all of them by name.
"""
