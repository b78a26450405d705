"""`python -m examples.demo`"""

import sys

from examples.demo.story import main

sys.exit(main())
