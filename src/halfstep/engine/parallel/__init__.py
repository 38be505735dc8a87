"""An engine on several devices: DDP, DataParallel, FSDP2, and the processes of one training."""
