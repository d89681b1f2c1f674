package store

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/textlen"
)

// cells takes a row of the file apart. The file may have been edited or damaged, so
// every value is checked, and the first that is wrong is remembered by its name,
// never with the value: that may be a secret.
type cells struct {
	names  []string
	values []any
	next   int
	err    error
}

// scanRows reads the rows of a query one by one until do returns false.
func scanRows(ctx context.Context, q querier, query string, args []any, do func(*cells) bool) error {
	rows, err := q.query(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	names, err := rows.Columns()
	if err != nil {
		return err
	}
	values := make([]any, len(names))
	targets := make([]any, len(names))
	for i := range values {
		targets[i] = &values[i]
	}
	for rows.Next() {
		if err := rows.Scan(targets...); err != nil {
			return err
		}
		if !do(&cells{names: names, values: values}) {
			return rows.Close()
		}
	}
	return rows.Err()
}

// takeValue returns the next value.
func takeValue[T any](c *cells) (v T) {
	v, ok := c.values[c.next].(T)
	if !ok {
		c.rejectValue(c.names[c.next])
	}
	c.next++
	return v
}

func (c *cells) nextText() string { return takeValue[string](c) }
func (c *cells) nextInt() int64   { return takeValue[int64](c) }

func (c *cells) nextDuration() time.Duration { return time.Duration(c.nextInt()) }

// nextBlob returns the next value, nil for NULL.
func (c *cells) nextBlob() []byte {
	if c.values[c.next] == nil {
		c.next++
		return nil
	}
	return takeValue[[]byte](c)
}

// nextTime returns the next value, zero for NULL.
func (c *cells) nextTime() time.Time {
	if c.values[c.next] == nil {
		c.next++
		return time.Time{}
	}
	name := c.names[c.next]
	t := time.UnixMicro(takeValue[int64](c)).UTC()
	if !inRange(t) {
		c.rejectValue(name)
	}
	return t
}

// rejectValue remembers that what is called name is wrong.
func (c *cells) rejectValue(name string) {
	if c.err == nil {
		c.err = fmt.Errorf("its %s cannot be read", strings.ReplaceAll(name, "_", " "))
	}
}

// toMicros returns a time as the file keeps it, nil for zero.
func toMicros(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UnixMicro()
}

// roundTime returns a time as it comes back from the file.
func roundTime(t time.Time) time.Time {
	if t.IsZero() {
		return time.Time{}
	}
	return time.UnixMicro(t.UnixMicro()).UTC()
}

// fromMicros returns a time that the file keeps.
func fromMicros(t sql.Null[int64]) time.Time {
	if !t.Valid {
		return time.Time{}
	}
	return time.UnixMicro(t.V).UTC()
}

// latestTime is the last time that the file keeps.
func latestTime() time.Time { return time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC) }

// inRange reports whether the file can keep t.
func inRange(t time.Time) bool {
	y := t.UTC().Year()
	return t.IsZero() || y >= 1970 && y <= 9999
}

// maxText is how long a text for people is kept: bytes.
const maxText = 1000

// shortenText shortens a text to maxText and makes it valid UTF-8.
func shortenText(text string) string {
	return textlen.Cut(strings.ToValidUTF8(text, "\uFFFD"), maxText)
}

// unreadableError sums up rows that could not be read, naming the first few.
func unreadableError(what string, bad []error) error {
	if len(bad) == 0 {
		return nil
	}
	const named = 10
	texts := make([]string, 0, named)
	for _, err := range bad[:min(len(bad), named)] {
		texts = append(texts, err.Error())
	}
	return sandpit.Errorf(sandpit.Internal, "%d %s cannot be read: %s", len(bad), what, strings.Join(texts, "; "))
}
