"""`python -m examples.wordcount [URL]`"""

import sys

from examples.wordcount.story import main

sys.exit(main(sys.argv[1:]))
