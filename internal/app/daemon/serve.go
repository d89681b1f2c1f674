package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/app/config"
	"github.com/sandpit-dev/sandpit/internal/app/registration"
	"github.com/sandpit-dev/sandpit/internal/app/telemetry"
	"github.com/sandpit-dev/sandpit/internal/build/image"
	"github.com/sandpit-dev/sandpit/internal/front/api"
)

// Options are what a server needs besides its configuration. The zero value of a
// field means the default stated with it.
type Options struct {
	// Out receives, in a few lines for people, where the server listens, as soon as it
	// does. Default: none.
	Out io.Writer
	// Log is where the log goes; it must take concurrent calls. Default: nowhere.
	Log io.Writer
	// Terminal says that Log is a terminal.
	Terminal bool
	// ControlGroup moves this process into a control group of its own for as long as the
	// server runs, where it may make one. It is for processes that run only the
	// server.
	ControlGroup bool
	// Started is called with the same addresses, for programs. Default: none.
	Started func(Addresses)
}

// Addresses are where a server listens. "" is nowhere.
type Addresses struct {
	// URL is of the TCP address.
	URL string
	// Socket is the path of the unix socket.
	Socket string
	// Metrics is the URL of the figures that need no key.
	Metrics string
	// SSH is the TCP address of SSH.
	SSH string
	// Previews is the URL of previews by path.
	Previews string
}

// closeLimit is how long the manager has to finish what is under way.
const closeLimit = time.Minute

// Serve runs a server until ctx ends, and returns when all of its work has ended. Its
// sandboxes keep running: the next server in the same state directory takes them over.
//
// Conflict: another server uses the state directory or the address. PermissionDenied: the
// address is reachable from other machines and there is no API key. Unsupported: the provider
// is unknown or cannot create sandboxes here. Other errors concern the configuration,
// directories, and the queue's server.
func Serve(ctx context.Context, cfg config.Config, o Options) error {
	return serveWith(ctx, cfg, o, registrations())
}

// serveWith is Serve with other providers than those that this program knows.
func serveWith(ctx context.Context, cfg config.Config, o Options, list []registration.Provider) (err error) {
	if o.Log == nil {
		o.Log = io.Discard
	}
	logger := telemetry.NewLog(o.Log, telemetry.LogOptions{
		Level: cfg.Log.Level, Console: consoleWanted(cfg.Log.Format, o.Terminal), Color: o.Terminal, RequestID: api.RequestID,
	})
	for _, text := range cfg.Notices {
		logger.WarnContext(ctx, "configuration", slog.String("notice", text))
	}
	if len(cfg.Ignored) > 0 {
		logger.InfoContext(ctx, "configuration: sections of other programs are ignored", slog.String("file", cfg.File), slog.Any("sections", cfg.Ignored))
	}
	s := &service{cfg: cfg, log: logger, notify: notifier{cfg.Systemd, logger}, registered: list, ownGroup: o.ControlGroup}
	defer func() { err = errors.Join(err, s.closeParts(context.WithoutCancel(ctx))) }()
	if err := s.openParts(ctx); err != nil {
		return err
	}
	return s.serveUntil(ctx, o)
}

func consoleWanted(format string, terminal bool) bool {
	return format == config.FormatConsole || format == config.FormatAuto && terminal
}

// openServerDirs creates the directories of a server and opens its image cache, which owners
// share as newSharing says.
func openServerDirs(cfg config.Config, newSharing func(config.Config) (*image.Sharing, error)) (*image.Store, error) {
	for _, dir := range []string{cfg.StateDir, cfg.CacheDir, cfg.RuntimeDir} {
		if err := config.MakePrivate(dir, os.Geteuid()); err != nil {
			return nil, err
		}
	}
	if newSharing == nil {
		return openImages(cfg, nil)
	}
	sharing, err := newSharing(cfg)
	if err != nil {
		return nil, err
	}
	return openImages(cfg, sharing)
}

// serveUntil answers until ctx ends.
func (s *service) serveUntil(ctx context.Context, o Options) error {
	where, err := s.openListeners(ctx)
	if err != nil {
		return err
	}
	err = s.refuseOpenDoor(ctx)
	if err == nil {
		where.SSH, err = s.listenSSH(ctx)
	}
	if err != nil {
		return errors.Join(err, s.server.Close(), s.closePaths(), s.closeMetrics())
	}
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	var group sync.WaitGroup
	defer group.Wait()
	defer stop()
	group.Go(func() { s.notify.notifyWatchdog(background, s.checkStore) })
	group.Go(func() { s.prePuller.pullAll(background) })
	group.Go(func() { s.pruner.Run(background) })
	failed := make(chan error, 1)
	if s.metricsListener != nil {
		group.Go(func() { failed <- s.metricsServer.Serve(s.metricsListener) })
	}
	serving, end := context.WithCancel(ctx)
	defer end()
	sshDone := s.serveSSH(serving, end)
	group.Go(func() {
		<-serving.Done()
		s.notify.sendState(context.WithoutCancel(ctx), "STOPPING=1")
	})
	paths := make(chan error, 1)
	go func() {
		err := s.servePaths(serving)
		if err != nil {
			end() // do not run half a server
		}
		paths <- err
	}()
	s.announceReady(ctx, o, where)
	err = s.server.Serve(serving)
	end()
	err = errors.Join(err, <-sshDone, <-paths, s.closeMetrics())
	select {
	case metricsErr := <-failed:
		if !errors.Is(metricsErr, http.ErrServerClosed) {
			err = errors.Join(err, metricsErr)
		}
	default:
	}
	s.log.InfoContext(ctx, "server: stopped; its sandboxes keep running")
	return err
}

// openListeners opens all listeners.
func (s *service) openListeners(ctx context.Context) (where Addresses, err error) {
	c := s.cfg.Server
	o := api.ServerOptions{
		Handler: s.newHandler(), Address: c.Listen, Drain: c.Drain, Log: s.log,
		MaxHeader: s.maxHeader(), MaxConnections: c.MaxConnections, MaxConnectionsPerAddress: c.MaxConnectionsPerAddress, MaxConnectionsPerOwner: c.MaxConnectionsPerOwner,
		Proxies: trustedProxies(c),
	}
	if c.Socket != config.None {
		o.Socket, where.Socket = c.Socket, c.Socket
	}
	if o.TLS, err = s.serverCertificates(); err != nil {
		return where, err
	}
	if s.server, err = api.Listen(ctx, o); err != nil {
		return where, err
	}
	if addr := s.server.Addr(); addr != nil {
		scheme := "http://"
		if o.TLS != nil {
			scheme = "https://"
		}
		where.URL = scheme + addr.String()
	}
	if where.Previews, err = s.listenPaths(ctx, o.TLS); err != nil {
		return where, errors.Join(err, s.server.Close())
	}
	if s.metrics == nil || s.cfg.Telemetry.MetricsListen == config.None {
		return where, nil
	}
	s.metricsListener, err = new(net.ListenConfig).Listen(ctx, "tcp", s.cfg.Telemetry.MetricsListen)
	if err != nil {
		return where, errors.Join(sandpit.Errorf(sandpit.Unavailable, "listen for metrics: %w", err), s.server.Close(), s.closePaths())
	}
	s.metricsServer = &http.Server{
		Handler: metricsHandler(s.metrics.Handler(), s.cfg.Telemetry.MetricsToken.Reveal(), s.serverNames()), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, IdleTimeout: time.Minute,
		MaxHeaderBytes: 16 << 10, ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	where.Metrics = "http://" + s.metricsListener.Addr().String() + pathMetrics
	return where, nil
}

// closeMetrics closes what listen has opened for the figures.
func (s *service) closeMetrics() error {
	if s.metricsListener == nil {
		return nil
	}
	err := errors.Join(s.metricsServer.Close(), ignoreClosed(s.metricsListener.Close()))
	s.metricsListener = nil
	return err
}

func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// refuseOpenDoor refuses to listen where other machines reach the server while there is no
// API key: no client could use the address, so it is most likely a mistake.
func (s *service) refuseOpenDoor(ctx context.Context) error {
	addr, ok := s.server.Addr().(*net.TCPAddr)
	if !ok || addr.IP.IsLoopback() {
		return nil
	}
	keys, err := s.store.Credentials().ListKeys(ctx, "", 1)
	if err != nil || len(keys) > 0 {
		return err
	}
	return sandpit.WithHint(
		sandpit.Errorf(sandpit.PermissionDenied, "%s is reachable from other machines, and there is no API key", s.cfg.Server.Listen),
		"make one first: start the server with SANDPIT_SERVER_LISTEN=none and run sandpit key create")
}

// announceReady reports that the server is ready.
func (s *service) announceReady(ctx context.Context, o Options, where Addresses) {
	s.notify.sendState(ctx, "READY=1\nSTATUS=listening at "+where.listAll())
	s.log.InfoContext(ctx, "server: listening", slog.String("url", where.URL), slog.String("socket", where.Socket),
		slog.String("metrics", where.Metrics), slog.String("ssh", where.SSH), slog.String("provider", s.cfg.Provider), slog.String("state_dir", s.cfg.StateDir))
	if o.Started != nil {
		o.Started(where)
	}
	if o.Out == nil {
		return
	}
	try := "sandpit create"
	if where.Socket == "" || where.Socket != s.usualSocket() {
		try = "sandpit --server " + where.firstURL() + " create"
	}
	// A failed write is ignored: there is no reader.
	_, _ = fmt.Fprintf(o.Out, "sandpit listens at %s\n", where.listAll())
	if where.SSH != "" {
		_, _ = fmt.Fprintf(o.Out, "SSH: %s\n", where.SSH)
	}
	_, _ = fmt.Fprintf(o.Out, "Try: %s\n", try)
}

// usualSocket is where clients look.
func (s *service) usualSocket() string { return filepath.Join(s.cfg.RuntimeDir, "sandpit.sock") }

func (a Addresses) firstURL() string {
	if a.Socket != "" {
		return "unix://" + a.Socket
	}
	return a.URL
}

func (a Addresses) listAll() string {
	var list []string
	if a.URL != "" {
		list = append(list, a.URL)
	}
	if a.Socket != "" {
		list = append(list, "unix://"+a.Socket)
	}
	return strings.Join(list, " and ")
}
