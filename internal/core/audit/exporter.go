package audit

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/sandpit-dev/sandpit/internal/core/pattern"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// Exporter writes events to compressed files of JSON lines, a file for each batch, named
// by the number of its first event. It is used by one goroutine at a time.
type Exporter struct {
	dir      string
	maxBytes int64
}

// filePattern is what the files of an Exporter are called.
var filePattern = pattern.New(`^events-[0-9]{15}\.jsonl\.gz$`)

// tempSuffix ends the name of a file that is being written.
const tempSuffix = ".tmp"

// NewExporter returns an exporter to a directory, which is created if missing, for its
// user only. All files together take at most maxBytes, 0 meaning any number: the oldest
// are removed first.
func NewExporter(dir string, maxBytes int64) (*Exporter, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create the directory of exported events: %w", err)
	}
	return &Exporter{dir, maxBytes}, nil
}

// exportedEvent is a line of a file. The hash covers what the store says of it.
type exportedEvent struct {
	Seq      int64             `json:"seq"`
	At       time.Time         `json:"at"`
	Actor    string            `json:"actor"`
	Action   string            `json:"action"`
	Owner    string            `json:"owner,omitempty"`
	Sandbox  string            `json:"sandbox,omitempty"`
	Args     map[string]string `json:"args,omitempty"`
	Result   string            `json:"result"`
	Message  string            `json:"message,omitempty"`
	Duration int64             `json:"duration_ns"`
	Hash     string            `json:"hash"`
}

// Export writes events to a file and returns when it is on disk. A file of the same first
// event is replaced: its writer was killed before it could drop the events.
func (x *Exporter) Export(events []store.Event) error {
	path := filepath.Join(x.dir, fmt.Sprintf("events-%015d.jsonl.gz", events[0].Seq))
	f, err := os.OpenFile(path+tempSuffix, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	err = writeEvents(f, events)
	if err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return errors.Join(syncDir(x.dir), x.removeOldest())
}

func writeEvents(f *os.File, events []store.Event) error {
	z := gzip.NewWriter(f)
	lines := json.NewEncoder(z)
	for _, e := range events {
		err := lines.Encode(exportedEvent{
			Seq: e.Seq, At: e.At.UTC(), Actor: e.Actor, Action: e.Action, Owner: e.Owner, Sandbox: string(e.Sandbox), Args: e.Args,
			Result: e.Result, Message: e.Message, Duration: int64(e.Duration), Hash: e.Hash,
		})
		if err != nil {
			return err
		}
	}
	return z.Close()
}

// removeOldest removes files until the rest is within the bound. The newest always stays.
func (x *Exporter) removeOldest() error {
	if x.maxBytes == 0 {
		return nil
	}
	entries, err := os.ReadDir(x.dir) // in the order of their names, and so of their events
	if err != nil {
		return err
	}
	total := int64(0)
	newest := true
	for _, e := range slices.Backward(entries) {
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) || !filePattern().MatchString(e.Name()) {
			continue
		}
		if err != nil {
			return err
		}
		total += info.Size()
		if total > x.maxBytes && !newest {
			if err := os.Remove(filepath.Join(x.dir, e.Name())); err != nil {
				return err
			}
		}
		newest = false
	}
	return nil
}

func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
