"""An engine on several devices: DDP, DataParallel and FSDP2."""
