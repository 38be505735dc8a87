"""An engine on several devices: DDP, DataParallel, FSDP2, and their process groups."""
