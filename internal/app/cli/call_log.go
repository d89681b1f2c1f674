package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/agents/tool"
	"github.com/sandpit-dev/sandpit/internal/app/config"
)

const (
	// callsName is the file in the state directory that records calls of tools.
	callsName = "tool-calls.jsonl"
	// maxCalls is the size in bytes at which the file is renamed; one renamed file is kept.
	maxCalls = 8 << 20
)

// callEvent is a line of that file. Like the events of a server it contains no input or output.
type callEvent struct {
	At time.Time `json:"at"`
	// Actor is a user of this machine.
	Actor   string            `json:"actor"`
	Action  string            `json:"action"`
	Sandbox string            `json:"sandbox,omitempty"`
	Args    map[string]string `json:"args"`
	// Result is ok, or the code of the error.
	Result   string  `json:"result"`
	Duration float64 `json:"duration_seconds"`
}

// callLog records calls of tools that no server records.
type callLog struct {
	file string
	// by is the command that calls tools.
	by        string
	onFailure func(error)

	once sync.Once
}

// newCallLog returns a log that prints a warning when it fails for the first time.
func newCallLog(a *app, cfg config.Config, by string) *callLog {
	return &callLog{file: filepath.Join(cfg.StateDir, callsName), by: by, onFailure: func(err error) {
		_, _ = fmt.Fprintf(a.Err, "warning: calls of tools are not recorded: %v\n", err) // the warning cannot be reported elsewhere
	}}
}

// record writes a line for a call. It is the audit function of a tool.Registry.
func (l *callLog) record(c tool.Call) {
	e := callEvent{
		At: time.Now().UTC(), Actor: "uid " + strconv.Itoa(os.Getuid()), Action: "tool", Sandbox: c.Session, Result: "ok", Duration: c.Took.Seconds(),
		Args: map[string]string{
			"tool": fmt.Sprintf("%.100s", c.Tool), "by": l.by, "input_bytes": strconv.Itoa(c.Input), "output_bytes": strconv.Itoa(c.Output),
		},
	}
	switch {
	case c.Code != "":
		e.Result = string(c.Code)
	case c.Failed:
		e.Args["failed"] = "true"
	}
	line, err := json.Marshal(e)
	if err == nil {
		err = config.MakePrivate(filepath.Dir(l.file), os.Geteuid())
	}
	if err == nil {
		err = l.appendLine(append(line, '\n'))
	}
	if err != nil {
		l.once.Do(func() { l.onFailure(err) })
	}
}

// appendLine adds a line to the file, which other programs of the user write as well.
func (l *callLog) appendLine(line []byte) error {
	for {
		f, err := os.OpenFile(l.file, os.O_APPEND|os.O_CREATE|os.O_WRONLY|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return err
		}
		again, err := l.appendLineTo(f, line)
		if err = errors.Join(err, f.Close()); err != nil || !again { // closing releases the lock
			return err
		}
	}
}

// appendLineTo adds a line, unless the file must be renamed or was renamed: then the caller tries
// again.
func (l *callLog) appendLineTo(f *os.File, line []byte) (again bool, err error) {
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		return false, fmt.Errorf("lock %s: %w", l.file, err)
	}
	about, err := f.Stat()
	if err != nil {
		return false, err
	}
	if now, err := os.Lstat(l.file); err != nil || !os.SameFile(now, about) {
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return false, err
		}
		return true, nil // another program renamed it first
	}
	if about.Size() > 0 && about.Size()+int64(len(line)) > maxCalls {
		return true, os.Rename(l.file, l.file+".1")
	}
	_, err = f.Write(line)
	return false, err
}
