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

// interruptedBuild is the reason of a build that a crash of the server interrupted.
const interruptedBuild = "interrupted by a restart of the server"

// saveLogEvery is the time between two writes of a build's log. All of the log is written each
// time, which is why its size is bounded.
const saveLogEvery = 2 * time.Second

// startSavingLog writes the log of a running build periodically, until stop is called.
func (bs *Builds) startSavingLog(ctx context.Context, id sandpit.BuildID, l *buildLog) (stop func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(saveLogEvery)
		defer tick.Stop()
		saved := 0
		for {
			select {
			case <-done:
				return
			case <-tick.C:
			}
			entries := l.listEntries()
			if len(entries) == saved {
				continue
			}
			if err := bs.store.Templates().SaveBuildLog(ctx, id, entries); err != nil {
				if ctx.Err() != nil {
					return // the whole log is written at the end of the build
				}
				bs.log.WarnContext(ctx, "manager: build log not written", slog.String("build", string(id)), slog.Any("error", err))
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

// recordInterruption adds the failure to the log of an interrupted build.
func (bs *Builds) recordInterruption(ctx context.Context, b store.TemplateBuild) error {
	entries, err := bs.store.Templates().BuildLog(ctx, b.ID, 0, maxLogEntries+1)
	if err != nil {
		return err
	}
	last := sandpit.BuildLog{Seq: int64(len(entries) + 1), At: b.FinishedAt.UTC(), Error: true, Text: b.Reason.Message}
	return bs.store.Templates().SaveBuildLog(ctx, b.ID, append(entries, last))
}

// The bounds of a build's log. The rest of a longer log is left out, except the failure.
const (
	maxLogEntries = 10_000
	maxLogBytes   = 2 << 20
	maxLogLine    = 4096
)

// buildLog is the log of a build, without its secrets.
type buildLog struct {
	now    func() time.Time
	hidden []string

	mu        sync.Mutex
	entries   []sandpit.BuildLog
	bytes     int
	step      int
	current   string // see currentStep
	partial   []byte // the last line, while it is incomplete
	truncated bool
}

// findHidden returns the texts that the log must not contain. Those of less than six bytes are not
// hidden, because they would be found everywhere.
func findHidden(r BuildRequest) []string {
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

// currentStep returns the last text of beginStep, which is not output of a command.
func (l *buildLog) currentStep() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.current
}

func (l *buildLog) maskSecrets(text string) string {
	for _, value := range l.hidden {
		text = strings.ReplaceAll(text, value, "***")
	}
	return text
}

func (l *buildLog) maskError(err error) error {
	if err == nil {
		return nil
	}
	return sandpit.Errorf(sandpit.CodeOf(err), "%s", l.maskSecrets(err.Error()))
}

func (l *buildLog) listEntries() []sandpit.BuildLog {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clip(l.entries)
}

// beginStep logs that a step begins; the number is 0 for what is not a step.
func (l *buildLog) beginStep(number int, step string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.flushPartial()
	l.step, l.current = number, step
	l.addEntry(step, false)
}

// writeOutput logs output of a command.
func (l *buildLog) writeOutput(p []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.partial = append(l.partial, p...)
	for {
		line, after, ended := bytes.Cut(l.partial, []byte("\n"))
		if !ended && len(line) <= maxLogLine {
			return
		}
		if !ended {
			line, after = l.partial[:maxLogLine], l.partial[maxLogLine:]
		}
		l.addEntry(string(line), false)
		l.partial = append(l.partial[:0], after...)
	}
}

// addFailure logs why the build has failed.
func (l *buildLog) addFailure(text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.flushPartial()
	l.truncated, l.bytes = false, 0
	l.addEntry(text, true)
}

func (l *buildLog) endOutput() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.flushPartial()
}

func (l *buildLog) flushPartial() {
	if len(l.partial) > 0 {
		l.addEntry(string(l.partial), false)
		l.partial = nil
	}
}

func (l *buildLog) addEntry(text string, failed bool) {
	if l.truncated {
		return
	}
	if !failed && (len(l.entries) >= maxLogEntries || l.bytes > maxLogBytes) {
		l.truncated, text = true, "(the rest is left out: this log is too long)"
	}
	text = strings.ToValidUTF8(l.maskSecrets(strings.TrimRight(text, "\r")), "\uFFFD")
	l.bytes += len(text)
	l.entries = append(l.entries, sandpit.BuildLog{
		Seq: int64(len(l.entries) + 1), At: l.now().UTC(), Step: l.step, Error: failed, Text: text,
	})
}
