"""What a program calls and starts: functions, threads, processes, graphs and files."""
