package envd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/gen/filesystem"
)

const (
	// maxEvents bounds the events that wait for a slow caller. The guest holds back later
	// ones.
	maxEvents = 32
	// maxEventName is how long the path of an event's file can be, in bytes.
	maxEventName = 4096
)

var eventTypes = map[filesystem.EventType]sandpit.FileEventType{
	filesystem.EventType_EVENT_TYPE_CREATE: sandpit.FileCreated,
	filesystem.EventType_EVENT_TYPE_WRITE:  sandpit.FileWritten,
	filesystem.EventType_EVENT_TYPE_REMOVE: sandpit.FileRemoved,
	filesystem.EventType_EVENT_TYPE_RENAME: sandpit.FileRenamed,
	filesystem.EventType_EVENT_TYPE_CHMOD:  sandpit.FileChanged,
}

// watcher is a sandpit.Watcher.
type watcher struct {
	events chan sandpit.FileEvent
	ended  chan struct{}
	err    error // set before ended is closed
	cancel context.CancelFunc
	closed sync.Once
}

// Watch implements sandpit.Files.
func (f *files) Watch(ctx context.Context, user, p string, o sandpit.WatchOptions) (sandpit.Watcher, error) {
	if err := ctx.Err(); err != nil { // AfterFunc below would cancel the stream only later
		return nil, fmt.Errorf("watch %s: %w", p, callError(ctx, err))
	}
	// The deadline of ctx must not be sent: the guest would end the stream at it, and the
	// caller would get the wrong error.
	streamCtx, end := context.WithCancelCause(context.WithoutCancel(ctx))
	cancel := func() { end(nil) }
	unlink := context.AfterFunc(ctx, cancel)
	late := time.AfterFunc(startLimit, func() { end(errNoStart) })
	defer late.Stop()
	req := connect.NewRequest(&filesystem.WatchDirRequest{Path: p, Recursive: o.Recursive, IncludeEntry: o.Describe})
	f.setHeaders(req.Header(), user)
	stream, err := f.calls.WatchDir(streamCtx, req)
	if err == nil {
		if err = receiveWatchStart(stream); err != nil {
			_ = stream.Close() // err is returned already
		}
	}
	if err != nil {
		unlink()
		if errors.Is(context.Cause(streamCtx), errNoStart) {
			return nil, fmt.Errorf("watch %s: %w", p, errNoStart)
		}
		cancel()
		return nil, fmt.Errorf("watch %s: %w", p, callError(ctx, err))
	}
	w := &watcher{events: make(chan sandpit.FileEvent, maxEvents), ended: make(chan struct{}), cancel: cancel}
	go func() {
		defer close(w.ended)
		defer cancel()
		defer unlink()
		w.err = w.receiveEvents(streamCtx, ctx, stream)
	}()
	return w, nil
}

func receiveWatchStart(stream *connect.ServerStreamForClient[filesystem.WatchDirResponse]) error {
	if !stream.Receive() {
		if err := stream.Err(); err != nil {
			return err
		}
		return io.ErrUnexpectedEOF
	}
	if stream.Msg().GetStart() == nil {
		return sandpit.Errorf(sandpit.Internal, "the guest did not report the start of the watch")
	}
	return nil
}

// receiveEvents receives events until the stream ends, and returns the reason.
func (w *watcher) receiveEvents(ctx, callers context.Context, stream *connect.ServerStreamForClient[filesystem.WatchDirResponse]) error {
	defer stream.Close()
	for stream.Receive() {
		told := stream.Msg().GetFilesystem()
		if told == nil {
			continue
		}
		event, err := eventOf(told)
		if err != nil {
			return err
		}
		select {
		case w.events <- event:
		case <-ctx.Done():
		}
	}
	switch err := stream.Err(); {
	case callers.Err() != nil:
		return callers.Err()
	case ctx.Err() != nil:
		return sandpit.Errorf(sandpit.Gone, "the watch is closed")
	case err == nil:
		return sandpit.Errorf(sandpit.Gone, "the watched directory was removed")
	default:
		return callError(callers, err)
	}
}

// eventOf checks and converts an event of the guest.
func eventOf(e *filesystem.FilesystemEvent) (sandpit.FileEvent, error) {
	event := sandpit.FileEvent{Name: e.GetName(), Type: eventTypes[e.GetType()]}
	if event.Type == "" || !isBelow(event.Name) {
		return event, sandpit.Errorf(sandpit.Internal, "the guest reports an invalid event")
	}
	if e.GetEntry() == nil {
		return event, nil
	}
	file, err := fileOf(e.GetEntry())
	event.File = &file
	return event, err
}

// isBelow reports whether a relative name stays below its directory.
func isBelow(name string) bool {
	return name != "" && len(name) <= maxEventName && !path.IsAbs(name) && path.Clean(name) == name &&
		name != ".." && !strings.HasPrefix(name, "../") && !strings.Contains(name, "\x00")
}

// Next implements sandpit.Watcher.
func (w *watcher) Next(ctx context.Context) (sandpit.FileEvent, error) {
	select { // events from before the end come first
	case e := <-w.events:
		return e, nil
	default:
	}
	select {
	case e := <-w.events:
		return e, nil
	case <-ctx.Done():
		return sandpit.FileEvent{}, ctx.Err()
	case <-w.ended:
	}
	select {
	case e := <-w.events:
		return e, nil
	default:
		return sandpit.FileEvent{}, fmt.Errorf("watch: %w", w.err)
	}
}

// Close implements sandpit.Watcher.
func (w *watcher) Close() error {
	w.closed.Do(func() {
		w.cancel()
		<-w.ended
	})
	return nil
}
