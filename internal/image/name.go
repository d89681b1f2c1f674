package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// pulled is what is remembered of a name.
type pulled struct {
	Name   string `json:"name"`
	Key    string `json:"key"`
	Digest string `json:"digest,omitempty"` // that the registry had under the name; "" if it was imported
}

const nameSuffix = ".name"

func nameFile(r reference) string { return digest("name", r.String()) + nameSuffix }

// known returns what is remembered of a name, with a key if its image is there.
func (s *Store) known(r reference) (pulled, error) {
	var p pulled
	if err := s.readRecord(nameFile(r), &p); err != nil || p.Name != r.String() || !isKey(p.Key) {
		return pulled{}, err
	}
	key, err := s.finished(p.Key)
	p.Key = key
	return p, err
}

// fromRegistry returns the image of a name: that of the cache, or what the
// registry has.
func (s *Store) fromRegistry(ctx context.Context, text string, p Progress) (*os.File, error) {
	r, err := parseReference(text)
	if err != nil {
		return nil, hintPath(err, text)
	}
	f, err := s.named(ctx, r, s.o.Pull, p)
	return f, hintPath(err, text)
}

// hintPath tells of a file that may be meant.
func hintPath(err error, text string) error {
	if code := sandpit.CodeOf(err); err == nil || code == sandpit.Canceled {
		return err
	}
	if _, statErr := os.Lstat(text); statErr == nil {
		return sandpit.WithHint(err, "for the file or directory of that name write ./"+text)
	}
	return err
}

func (s *Store) named(ctx context.Context, r reference, policy PullPolicy, p Progress) (*os.File, error) {
	for range 5 {
		if policy != PullAlways || r.digest != "" || r.template != "" {
			have, err := s.known(r)
			if err != nil {
				return nil, err
			}
			if have.Key != "" {
				if f, err := s.open(ctx, have.Key); err != nil || f != nil {
					return f, err
				}
			}
		}
		if r.template != "" {
			return nil, sandpit.WithHint(sandpit.Errorf(sandpit.NotFound, "there is no such template"),
				"sandpit template ls; or build it: sandpit template build -t "+r.template)
		}
		if policy == PullNever {
			return nil, sandpit.WithHint(sandpit.Errorf(sandpit.NotFound, "it is not in the cache, and no registry may be asked"),
				"set image.pull to missing, or: sandpit image import FILE --name "+r.short())
		}
		f, err := s.pullNamed(ctx, r, policy, p)
		if err != nil || f != nil {
			return f, err
		}
	}
	return nil, sandpit.Errorf(sandpit.Unavailable, "somebody keeps removing the image from the cache")
}

// pullNamed fetches the image of a name and remembers it. Who comes while another
// does takes what that one has got.
func (s *Store) pullNamed(ctx context.Context, r reference, policy PullPolicy, p Progress) (*os.File, error) {
	before, err := s.recordTime(nameFile(r))
	if err != nil {
		return nil, err
	}
	record, err := s.acquire(ctx, nameFile(r))
	if err != nil {
		return nil, err
	}
	defer func() { _ = record.Close() }() // gives up the lock; the file was synced
	drop := func(err error) error {
		if removeErr := os.Remove(record.Name()); removeErr != nil {
			err = errors.Join(err, fmt.Errorf("clean the image cache: %w", removeErr))
		}
		return err
	}
	after, err := s.recordTime(nameFile(r))
	if err != nil {
		return nil, drop(err)
	}
	if have, err := s.known(r); err != nil || have.Key != "" && (policy != PullAlways || !after.Equal(before)) {
		if err != nil {
			return nil, drop(err)
		}
		f, err := s.open(ctx, have.Key)
		return f, drop(err)
	}
	f, key, digest, err := s.pull(ctx, r, p)
	if err != nil {
		return nil, drop(err)
	}
	if err := s.writeName(record, nameFile(r), pulled{Name: r.String(), Key: key, Digest: digest}); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// isKey reports whether text can be the key of an image: keys become file names.
func isKey(text string) bool {
	return len(text) == 64 && strings.Trim(text, "0123456789abcdef") == ""
}

// recordTime is when a record was written, or the zero time.
func (s *Store) recordTime(name string) (time.Time, error) {
	info, err := os.Lstat(filepath.Join(s.dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return time.Time{}, nil
	}
	if err != nil {
		return time.Time{}, fmt.Errorf("look into the image cache: %w", err)
	}
	return info.ModTime(), nil
}

// writeName finishes a record that was acquired.
func (s *Store) writeName(f *os.File, name string, p pulled) error {
	if err := json.NewEncoder(f).Encode(p); err != nil {
		return s.explain(errors.Join(fmt.Errorf("write to the image cache: %w", err), os.Remove(f.Name())))
	}
	return s.publish(f, name)
}
