// Package archive keeps large objects where they cost little: in a directory, or in a
// store that speaks the protocol of Amazon S3.
package archive

import (
	"context"
	"io"
	"regexp"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// Store has objects by their keys. An object is there whole or not at all, whatever
// breaks down while it is put. All methods may be called concurrently.
type Store interface {
	// Put reads an object to its end and returns when it is kept for good. One of the
	// same key is replaced. Unavailable: the store cannot be reached. Exhausted: no room.
	Put(ctx context.Context, key string, from io.Reader) error
	// Get opens an object; the caller closes it. NotFound: there is none.
	Get(ctx context.Context, key string) (io.ReadCloser, error)
	// Remove is idempotent.
	Remove(ctx context.Context, key string) error
	// List returns all objects in the order of their keys.
	List(ctx context.Context) ([]Object, error)
}

// Object is one entry of a list.
type Object struct {
	Key       string
	Size      int64 // bytes
	CreatedAt time.Time
}

var keyPattern = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{0,199}$`)

// checkKey refuses what could not be the name of a file everywhere.
func checkKey(key string) error {
	if !keyPattern.MatchString(key) {
		return sandpit.Errorf(sandpit.Invalid, "archive key %.100q: want lower-case letters, digits, dots and dashes", key)
	}
	return nil
}
