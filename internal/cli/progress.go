package cli

import (
	"io"

	"github.com/schollz/progressbar/v3"
)

// newProgress returns a function that draws how far a conversion is, if w is a
// terminal, and one that clears the drawing away.
func newProgress(w io.Writer, what string) (update func(done, total int64), clear func()) {
	if _, ok := terminalOf(w); !ok {
		return nil, func() {}
	}
	var bar *progressbar.ProgressBar
	update = func(done, total int64) {
		if total <= 0 {
			total = -1
		}
		if bar == nil {
			bar = progressbar.NewOptions64(total,
				progressbar.OptionSetWriter(w),
				progressbar.OptionSetDescription(what),
				progressbar.OptionShowBytes(true),
				progressbar.OptionClearOnFinish(),
			)
		}
		_ = bar.Set64(done) // a bar that cannot be drawn is no reason to stop
	}
	return update, func() {
		if bar != nil {
			_ = bar.Finish()
		}
	}
}
