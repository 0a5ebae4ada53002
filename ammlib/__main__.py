from ammlib.cli import main

main()
