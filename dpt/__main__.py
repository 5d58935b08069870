from dpt.cli import main

main()
