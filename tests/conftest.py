import torch
from hypothesis import settings

# small nets: a second thread costs more than it brings, and on a busy machine far more
torch.set_num_threads(1)

settings.register_profile("project", deadline=None, derandomize=True)
settings.load_profile("project")
