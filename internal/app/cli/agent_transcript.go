package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/agent"
	"github.com/sandpit-dev/sandpit/internal/app/config"
)

// transcriptsDir is the directory of transcripts in the state directory.
const transcriptsDir = "transcripts"

// transcriptFile is the transcript of sandpit agent.
type transcriptFile struct {
	file *os.File // nil: none
	// created is true if it did not exist before.
	created bool
	// earlier is what a resumed transcript had.
	earlier *agent.Transcript
}

// openTranscript opens the transcript that is resumed, or creates one.
func (o *agentCommand) openTranscript(cfg config.Config) (*transcriptFile, error) {
	if o.resume != "" {
		return resumeTranscript(o.resume)
	}
	name := o.transcript
	switch name {
	case "none":
		return &transcriptFile{}, nil
	case "":
		dir := filepath.Join(cfg.StateDir, transcriptsDir)
		for _, d := range []string{cfg.StateDir, dir} {
			if err := config.MakePrivate(d, os.Geteuid()); err != nil {
				return nil, fmt.Errorf("create the transcript: %w", err)
			}
		}
		name = filepath.Join(dir, time.Now().UTC().Format("20060102-150405")+"-"+string(sandpit.NewID())+".jsonl")
	}
	f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY|os.O_APPEND|unix.O_NOFOLLOW, 0o600)
	if errors.Is(err, os.ErrExist) {
		return nil, sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "create the transcript: %w", err), "continue it with --resume, or choose another file")
	}
	if err != nil {
		return nil, sandpit.Errorf(sandpit.Invalid, "create the transcript: %w", err)
	}
	if err := lockTranscript(f); err != nil {
		return nil, err
	}
	return &transcriptFile{file: f, created: true}, nil
}

// resumeTranscript reads a transcript and opens it for further lines. Its last line is removed if it is
// incomplete.
func resumeTranscript(name string) (*transcriptFile, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_APPEND|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, sandpit.Errorf(sandpit.Invalid, "resume: %w", err)
	}
	if err := lockTranscript(f); err != nil {
		return nil, err
	}
	t, err := agent.ReadTranscript(f)
	if err == nil {
		err = f.Truncate(t.Length())
	}
	if err != nil {
		_ = f.Close() // nothing was written
		return nil, fmt.Errorf("resume %s: %w", name, err)
	}
	return &transcriptFile{file: f, earlier: t}, nil
}

// lockTranscript locks a transcript until it is closed, and closes it if another agent writes it.
func lockTranscript(f *os.File) error {
	if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
		return nil
	}
	_ = f.Close() // nothing was written
	return verbError{sandpit.Errorf(sandpit.Conflict, "another agent writes the transcript %s", f.Name())}
}

// writer returns where lines are written, or nil.
func (t *transcriptFile) writer() io.Writer {
	if t.file == nil {
		return nil
	}
	return t.file
}

// sandboxID returns the sandbox of a resumed transcript, or "".
func (t *transcriptFile) sandboxID() sandpit.ID {
	if t.earlier == nil {
		return ""
	}
	return t.earlier.SandboxID()
}

// announce prints the name of a new transcript.
func (t *transcriptFile) announce(w io.Writer) {
	if t.created {
		fmt.Fprintf(w, "transcript: %s\n", escapeText(t.file.Name()))
	}
}

// close closes the file, and removes it if nothing was written.
func (t *transcriptFile) close() error {
	if t.file == nil {
		return nil
	}
	info, err := t.file.Stat()
	if err == nil && t.created && info.Size() == 0 {
		err = os.Remove(t.file.Name())
	}
	return errors.Join(err, t.file.Close())
}
