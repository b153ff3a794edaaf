"""The doors as compiled code calls them: Dynamo does not look inside, where ranks talk, and on the CPU in NumPy.

A module of its own, as what it asks of torch loads Dynamo, which takes seconds: it is for who has Dynamo already.
"""

import torch

from attnbook.parallel import over_torch

attend, attend_layer = map(torch.compiler.disable, (over_torch.attend, over_torch.attend_layer))
