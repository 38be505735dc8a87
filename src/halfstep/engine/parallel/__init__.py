"""One engine on several devices: DDP, DataParallel, FSDP2, and the processes that train together."""
