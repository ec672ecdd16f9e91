import torch
from hypothesis import settings

torch.set_num_threads(1)  # the models here are tiny, and the machine is shared
settings.register_profile("engine", deadline=None)
settings.load_profile("engine")
