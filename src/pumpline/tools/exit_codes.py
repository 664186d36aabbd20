"""The exit codes of all commands.

| exit code | when                                                                  |
|-----------|-----------------------------------------------------------------------|
| 0         | all that was asked for is done, or nobody reads the output any more   |
| 1         | something failed, there was nothing to do, or stdout takes no more    |
| 2         | the command line cannot be understood                                 |
| 130       | Ctrl-C                                                                |
"""

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
