package manager

import (
	"bytes"
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// interruptedBuild is why a build has failed that a server was at which broke down.
const interruptedBuild = "interrupted by a restart of the server"

// keepEvery is the time between two writings of what a build has told. All of its log is
// written each time, which is why it is bounded.
const keepEvery = 2 * time.Second

// startSavingLog writes down what a build tells while it goes on, until stop is called.
func (bs *Builds) startSavingLog(ctx context.Context, id sandpit.BuildID, l *buildLog) (stop func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(keepEvery)
		defer tick.Stop()
		saved := 0
		for {
			select {
			case <-done:
				return
			case <-tick.C:
			}
			entries := l.all()
			if len(entries) == saved {
				continue
			}
			if err := bs.store.SaveBuildLog(ctx, id, entries); err != nil {
				if ctx.Err() != nil {
					return // all of it is written when the build has ended
				}
				bs.log.WarnContext(ctx, "what a build tells is not written down", slog.String("build", string(id)), slog.Any("error", err))
				continue
			}
			saved = len(entries)
		}
	}()
	return func() {
		close(done)
		<-ended
	}
}

// recordInterruption adds to what is kept of an interrupted build's log that it was.
func (bs *Builds) recordInterruption(ctx context.Context, b store.TemplateBuild) error {
	entries, err := bs.store.BuildLog(ctx, b.ID, 0, maxLogEntries+1)
	if err != nil {
		return err
	}
	last := sandpit.BuildLog{Seq: int64(len(entries) + 1), At: b.FinishedAt.UTC(), Error: true, Text: b.Reason.Message}
	return bs.store.SaveBuildLog(ctx, b.ID, append(entries, last))
}

// The bounds of a build's log. Of one that is longer the rest is left out, but for how it
// ends.
const (
	maxLogEntries = 10_000
	maxLogBytes   = 2 << 20
	maxLogLine    = 4096
)

// buildLog is what a build tells, without its secrets.
type buildLog struct {
	now    func() time.Time
	hidden []string

	mu      sync.Mutex
	entries []sandpit.BuildLog
	bytes   int
	step    int
	doing   string // see progress
	rest    []byte // of a line that has not ended
	cut     bool
}

// hiddenIn are the texts that must not be told. Those of less than six bytes are found
// everywhere.
func hiddenIn(r BuildRequest) []string {
	var list []string
	for _, value := range append(slices.Collect(maps.Values(r.Secrets)), r.Login.Password) {
		for line := range strings.Lines(value) {
			if line = strings.TrimRight(line, "\r\n"); len(line) >= 6 {
				list = append(list, line)
			}
		}
	}
	slices.SortFunc(list, func(a, b string) int { return len(b) - len(a) })
	return list
}

// progress returns what begin was told last, which is no output of a command.
func (l *buildLog) progress() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.doing
}

func (l *buildLog) mask(text string) string {
	for _, value := range l.hidden {
		text = strings.ReplaceAll(text, value, "***")
	}
	return text
}

func (l *buildLog) masked(err error) error {
	if err == nil {
		return nil
	}
	return sandpit.Errorf(sandpit.CodeOf(err), "%s", l.mask(err.Error()))
}

func (l *buildLog) all() []sandpit.BuildLog {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clip(l.entries)
}

// begin tells that a step begins; the number is 0 for what comes after all steps.
func (l *buildLog) begin(number int, step string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.flush()
	l.step, l.doing = number, step
	l.add(step, false)
}

// write takes what a command has put out.
func (l *buildLog) write(p []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rest = append(l.rest, p...)
	for {
		line, after, ended := bytes.Cut(l.rest, []byte("\n"))
		if !ended && len(line) <= maxLogLine {
			return
		}
		if !ended {
			line, after = l.rest[:maxLogLine], l.rest[maxLogLine:]
		}
		l.add(string(line), false)
		l.rest = append(l.rest[:0], after...)
	}
}

// fail tells why the build has failed.
func (l *buildLog) fail(text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.flush()
	l.cut, l.bytes = false, 0
	l.add(text, true)
}

func (l *buildLog) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.flush()
}

func (l *buildLog) flush() {
	if len(l.rest) > 0 {
		l.add(string(l.rest), false)
		l.rest = nil
	}
}

func (l *buildLog) add(text string, failed bool) {
	if l.cut {
		return
	}
	if !failed && (len(l.entries) >= maxLogEntries || l.bytes > maxLogBytes) {
		l.cut, text = true, "(the rest is left out: this log is too long)"
	}
	text = strings.ToValidUTF8(l.mask(strings.TrimRight(text, "\r")), "\uFFFD")
	l.bytes += len(text)
	l.entries = append(l.entries, sandpit.BuildLog{
		Seq: int64(len(l.entries) + 1), At: l.now().UTC(), Step: l.step, Error: failed, Text: text,
	})
}
