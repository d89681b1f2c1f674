// Package archive stores large objects where storage is cheap: in a directory, or in a store with the protocol of
// Amazon S3.
package archive

import (
	"context"
	"io"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/pattern"
)

// Store holds objects by key. An object is complete or absent, whatever fails during Put. All methods may be called
// concurrently.
type Store interface {
	// Put reads an object to its end and returns when it is stored durably. It replaces an object with the same key.
	// Unavailable: the store cannot be reached. Exhausted: no space.
	Put(ctx context.Context, key string, from io.Reader) error
	// Get opens an object; the caller closes it. NotFound: no such object.
	Get(ctx context.Context, key string) (io.ReadCloser, error)
	// Remove deletes an object. It is idempotent.
	Remove(ctx context.Context, key string) error
	// List returns all objects, sorted by key.
	List(ctx context.Context) ([]Object, error)
}

// Object is one entry of a list.
type Object struct {
	Key       string
	Size      int64 // bytes
	CreatedAt time.Time
}

var keyPattern = pattern.New(`^[a-z0-9][a-z0-9.-]{0,199}$`)

// checkKey refuses keys that some file system does not accept as a file name.
func checkKey(key string) error {
	if !keyPattern().MatchString(key) {
		return sandpit.Errorf(sandpit.Invalid, "archive key %.100q: want lower-case letters, digits, dots and dashes", key)
	}
	return nil
}
