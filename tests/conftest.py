import signal

import torch
from hypothesis import settings

# small nets: a second thread costs more than it brings, and on a busy machine far more
torch.set_num_threads(1)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in the background of a shell, and so in all that tests start
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("project", deadline=None, derandomize=True)
settings.load_profile("project")
