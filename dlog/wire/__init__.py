"""Bytes to values and back: pure, bounded, no IO, no clock.

Everything that is stored or sent has its format here, and `docs/FORMATS.md` explains every byte.
The room imports the floor only; whatever speeds it up (numpy, fastcrc, lz4, zstandard, pyarrow) is
loaded at first need, because none of it is needed to be right. A decoder believes nothing: each
length and offset is checked once, where the bytes come in, so that no later access can go wrong;
what does not fit is `Corrupt`, what this version does not know is `FormatError`. Start reading at
`batch`, the front door of the entry format, then `layout`.
"""

Buffer = bytes | bytearray | memoryview
