package cli

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
)

// progressEvery is the time between two lines about a transfer without a terminal.
const progressEvery = 5 * time.Second

// newProgress returns a function that shows the progress of a transfer and one that ends it: a
// bar on a terminal, and elsewhere a line every few seconds.
func newProgress(w io.Writer, what string) (update func(done, total int64), clear func()) {
	if _, ok := terminalOf(w); !ok {
		return newLineProgress(w, what, time.Now), func() {}
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
		_ = bar.Set64(done) // a progress bar is optional
	}
	return update, func() {
		if bar != nil {
			_ = bar.Finish()
		}
	}
}

// newLineProgress returns a function that writes a line at most every few seconds, the first one
// after that time.
func newLineProgress(w io.Writer, what string, now func() time.Time) func(done, total int64) {
	var mu sync.Mutex
	last := now()
	return func(done, total int64) {
		mu.Lock()
		defer mu.Unlock()
		if now().Sub(last) < progressEvery {
			return
		}
		last = now()
		text := formatDecimalBytes(done)
		if total > 0 {
			text += " of " + formatDecimalBytes(total)
		}
		fmt.Fprintf(w, "%s: %s\n", toPrintableLine(what), text)
	}
}
