"""`python -m examples.handover [URL]`"""

import sys

from examples.handover.story import main

sys.exit(main(sys.argv[1:]))
