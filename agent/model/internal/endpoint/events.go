package endpoint

import (
	"bufio"
	"errors"
	"io"

	"github.com/tmaxmax/go-sse"
)

// readEvents has r read the events of a response.
func (e *Endpoint) readEvents(content io.Reader, r Reader) (err error) {
	sse.Read(content, &sse.ReadConfig{MaxEventSize: maxEvent})(func(event sse.Event, readErr error) bool {
		if err = readErr; err == nil {
			err = r.ReadEvent(event.Type, []byte(event.Data))
		}
		return err == nil
	})
	switch {
	case errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF):
		return nil
	case errors.Is(err, bufio.ErrTooLong):
		return errTooLarge
	case errors.Is(err, sse.ErrUnexpectedEOF):
		return ErrIncomplete
	case err != nil:
		return err
	}
	return r.Finish()
}
