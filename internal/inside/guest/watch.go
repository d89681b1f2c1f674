package guest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"path"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/inside/watch"
	"github.com/sandpit-dev/sandpit/internal/reach/gen/filesystem"
)

// maxWatchers bounds the watchers that clients poll; they have no stream whose end would show that the client is
// gone.
const maxWatchers = 100

var eventTypes = map[sandpit.FileEventType]filesystem.EventType{
	sandpit.FileCreated: filesystem.EventType_EVENT_TYPE_CREATE,
	sandpit.FileWritten: filesystem.EventType_EVENT_TYPE_WRITE,
	sandpit.FileRemoved: filesystem.EventType_EVENT_TYPE_REMOVE,
	sandpit.FileRenamed: filesystem.EventType_EVENT_TYPE_RENAME,
	sandpit.FileChanged: filesystem.EventType_EVENT_TYPE_CHMOD,
}

// watched is a directory that a client watches.
type watched struct {
	*watch.Watcher

	accounts *accounts
	target   *target
	within   confinement // of the call
	describe bool        // events describe the file
}

func (w *watched) closeWatch() error {
	w.target.closeRoot()
	return w.Close()
}

// watchRequest is the common part of both requests to watch.
type watchRequest interface {
	GetPath() string
	GetRecursive() bool
	GetIncludeEntry() bool
}

// startWatch watches the directory that a call names. The option to allow network mounts is ignored, because a
// sandbox has none.
func (s *filesystemService) startWatch(req connect.AnyRequest, msg watchRequest) (*watched, error) {
	p, err := s.targetOf(req, msg.GetPath(), true)
	if err != nil {
		return nil, err
	}
	info, err := p.root.Lstat(p.rel)
	if err == nil && !info.IsDir() {
		err = connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("path is not a directory: %s", p.path))
	}
	if err != nil {
		p.closeRoot()
		return nil, fileError(err, p)
	}
	w, err := watch.New(p.real, msg.GetRecursive())
	if err != nil {
		p.closeRoot()
		return nil, watchError(err)
	}
	return &watched{Watcher: w, accounts: s.guest.accounts, target: p, within: confinementOf(req.Header()), describe: msg.GetIncludeEntry()}, nil
}

// watchError gives an error of a watch its code.
func watchError(err error) error {
	code := connect.CodeInternal
	switch sandpit.CodeOf(err) {
	case sandpit.NotFound:
		code = connect.CodeNotFound
	case sandpit.Invalid:
		code = connect.CodeInvalidArgument
	case sandpit.Exhausted:
		code = connect.CodeResourceExhausted
	default:
	}
	return connect.NewError(code, err)
}

// toProto returns an event as the protocol describes it.
func (w *watched) toProto(e watch.Event) *filesystem.FilesystemEvent {
	event := &filesystem.FilesystemEvent{Name: e.Name, Type: eventTypes[e.Type]}
	if !w.describe {
		return event
	}
	d := describer{names: names{accounts: w.accounts}, within: w.within}
	entry, err := d.describeFile(w.target.root, path.Join(w.target.rel, e.Name), path.Join(w.target.real, e.Name))
	if err == nil { // otherwise the file is gone
		entry.Path = path.Join(w.target.path, e.Name)
		event.Entry = entry
	}
	return event
}

// WatchDir implements the service. The stream ends with the directory.
func (s *filesystemService) WatchDir(ctx context.Context, req *connect.Request[filesystem.WatchDirRequest], stream *connect.ServerStream[filesystem.WatchDirResponse]) (err error) {
	w, err := s.startWatch(req, req.Msg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.closeWatch()) }()
	err = stream.Send(&filesystem.WatchDirResponse{Event: &filesystem.WatchDirResponse_Start{Start: &filesystem.WatchDirResponse_StartEvent{}}})
	interval := keepAliveInterval(req.Header())
	for err == nil {
		err = s.sendNext(ctx, interval, w, stream)
	}
	switch {
	case sandpit.CodeOf(err) == sandpit.Gone:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case sandpit.CodeOf(err) == sandpit.Exhausted:
		return watchError(err)
	}
	return err
}

// sendNext sends the next event, or a keep-alive if there was none for an interval.
func (s *filesystemService) sendNext(ctx context.Context, interval time.Duration, w *watched, stream *connect.ServerStream[filesystem.WatchDirResponse]) error {
	idle, cancel := context.WithTimeout(ctx, interval)
	defer cancel()
	e, err := w.Next(idle)
	switch {
	case err == nil:
		return stream.Send(&filesystem.WatchDirResponse{Event: &filesystem.WatchDirResponse_Filesystem{Filesystem: w.toProto(e)}})
	case idle.Err() != nil && ctx.Err() == nil:
		return stream.Send(&filesystem.WatchDirResponse{Event: &filesystem.WatchDirResponse_Keepalive{Keepalive: &filesystem.WatchDirResponse_KeepAlive{}}})
	}
	return err
}

// watchers are the watchers that clients poll.
type watchers struct {
	mu     sync.Mutex
	byID   map[string]*watched
	closed bool
}

var errClosing = connect.NewError(connect.CodeUnavailable, errors.New("the guest is ending"))

func (ws *watchers) addWatcher(w *watched) (string, error) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.closed {
		return "", errClosing
	}
	if len(ws.byID) >= maxWatchers {
		return "", connect.NewError(connect.CodeResourceExhausted, fmt.Errorf("more than %d watchers; remove those that are not needed", maxWatchers))
	}
	if ws.byID == nil {
		ws.byID = make(map[string]*watched)
	}
	id := rand.Text()
	ws.byID[id] = w
	return id, nil
}

func (ws *watchers) findWatcher(id string) (*watched, error) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if w := ws.byID[id]; w != nil {
		return w, nil
	}
	return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("watcher with id %.40q not found", id))
}

func (ws *watchers) removeWatcher(id string) (*watched, error) {
	w, err := ws.findWatcher(id)
	if err != nil {
		return nil, err
	}
	ws.mu.Lock()
	defer ws.mu.Unlock()
	delete(ws.byID, id)
	return w, nil
}

// close ends all watchers.
func (ws *watchers) close() {
	ws.mu.Lock()
	ws.closed = true
	list := ws.byID
	ws.byID = nil
	ws.mu.Unlock()
	for _, w := range list {
		_ = w.closeWatch() // it was only read
	}
}

// CreateWatcher implements the service.
func (s *filesystemService) CreateWatcher(_ context.Context, req *connect.Request[filesystem.CreateWatcherRequest]) (*connect.Response[filesystem.CreateWatcherResponse], error) {
	w, err := s.startWatch(req, req.Msg)
	if err != nil {
		return nil, err
	}
	id, err := s.guest.watchers.addWatcher(w)
	if err != nil {
		return nil, errors.Join(err, w.closeWatch())
	}
	return connect.NewResponse(&filesystem.CreateWatcherResponse{WatcherId: id}), nil
}

// GetWatcherEvents implements the service: it returns the events since the last call.
func (s *filesystemService) GetWatcherEvents(_ context.Context, req *connect.Request[filesystem.GetWatcherEventsRequest]) (*connect.Response[filesystem.GetWatcherEventsResponse], error) {
	w, err := s.guest.watchers.findWatcher(req.Msg.GetWatcherId())
	if err != nil {
		return nil, err
	}
	events, err := w.Take()
	if err != nil && sandpit.CodeOf(err) != sandpit.Gone {
		return nil, watchError(err)
	}
	res := &filesystem.GetWatcherEventsResponse{}
	for _, e := range events {
		res.Events = append(res.Events, w.toProto(e))
	}
	return connect.NewResponse(res), nil
}

// RemoveWatcher implements the service.
func (s *filesystemService) RemoveWatcher(_ context.Context, req *connect.Request[filesystem.RemoveWatcherRequest]) (*connect.Response[filesystem.RemoveWatcherResponse], error) {
	w, err := s.guest.watchers.removeWatcher(req.Msg.GetWatcherId())
	if err != nil {
		return nil, err
	}
	if err := w.closeWatch(); err != nil {
		return nil, watchError(err)
	}
	return connect.NewResponse(&filesystem.RemoveWatcherResponse{}), nil
}
