"""An examination of the embedded model by media that no training code drew, asked through a running server."""
