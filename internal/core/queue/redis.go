package queue

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	_ "embed" // for the script
	"errors"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/pattern"
)

// RedisOptions say where a queue is kept.
type RedisOptions struct {
	// URL is redis://[user:password@]host[:port][/database], rediss:// for TLS, or
	// unix://[user:password@]/path[?db=database].
	URL string
	// CAFile is a file of PEM certificates: with TLS, the server's must be signed by
	// one of them. Default: those the machine trusts.
	CAFile string
	// Prefix starts the names of all keys: queues with different prefixes do not
	// know each other. 1 to 64 letters, digits, "-", "_" and ".".
	Prefix string
}

// Redis is a queue in a Redis server (5 or later, or one that speaks like it),
// which several servers may share. It lasts as long as that server keeps its
// data: see appendonly in Redis' own documentation.
//
// A call that cannot reach the server is sent again, three times. None happens
// twice by that, but an answer to a claim whose first try did arrive comes out as
// a Conflict.
type Redis struct {
	client *redis.Client
	script *redis.Script
	root   string
	secret string // never to be seen in an error
}

var _ Queue = (*Redis)(nil)

//go:embed redis.lua
var script string

const (
	resends     = 3
	dialLimit   = 2 * time.Second // for a connection, and for each read and write
	redisConns  = 16
	maxRedisURL = 4096
)

var prefixPattern = pattern.New(`^[A-Za-z0-9._-]{1,64}$`)

// quiet is for the library, which has one logger for all clients, and it prints
// to standard error. What it says there comes back as errors too.
var quiet sync.Once

// NewRedis returns a queue that connects on first use; Check reports whether it can.
// Errors: Invalid for options that cannot work, and those of reading CAFile.
func NewRedis(o RedisOptions) (*Redis, error) {
	if !prefixPattern().MatchString(o.Prefix) {
		return nil, sandpit.Errorf(sandpit.Invalid, "redis prefix %.70q: want 1 to 64 letters, digits, '.', '-' and '_'", o.Prefix)
	}
	opt, err := parseRedis(o.URL)
	if err != nil {
		return nil, err
	}
	if err := trustCertificates(opt, o.CAFile); err != nil {
		return nil, err
	}
	quiet.Do(func() { redis.SetLogger(&logging.VoidLogger{}) })
	opt.ContextTimeoutEnabled = true
	opt.MaxRetries = -1 // not every command may be sent twice without a thought
	opt.DialerRetries = 1
	opt.DialTimeout, opt.ReadTimeout, opt.WriteTimeout = dialLimit, dialLimit, dialLimit
	opt.PoolSize, opt.MaxActiveConns = redisConns, redisConns
	opt.DisableIdentity = true
	opt.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return &Redis{
		client: redis.NewClient(opt),
		script: redis.NewScript(script),
		root:   "{" + o.Prefix + "}", // braces: all of it in one place of a cluster
		secret: opt.Password,
	}, nil
}

// parseRedis reads a URL. Its errors do not repeat it, or what the parser says
// of it: it may hold a password.
func parseRedis(text string) (*redis.Options, error) {
	u, err := url.Parse(text)
	if err != nil || len(text) > maxRedisURL {
		return nil, badURL("it is not a URL")
	}
	for name := range u.Query() {
		if name != "db" {
			return nil, badURL("it has other parameters than db")
		}
	}
	opt, err := redis.ParseURL(text)
	if err != nil {
		return nil, badURL("its parts are wrong")
	}
	if opt.DB < 0 {
		return nil, badURL("its database is negative")
	}
	return opt, nil
}

func badURL(why string) error {
	return sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "redis URL: %s", why),
		"Write redis://[user:password@]host[:port][/database], with rediss:// for TLS. Special characters of a password are written as %XX.")
}

// trustCertificates makes the certificates in a file the only ones that are trusted.
func trustCertificates(opt *redis.Options, file string) error {
	if file == "" {
		return nil
	}
	if opt.TLSConfig == nil {
		return sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "redis: a file of certificates is given, but the URL does not ask for TLS"),
			"Write rediss:// instead of redis://.")
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return sandpit.Errorf(sandpit.CodeOf(err), "redis certificates: %w", err)
	}
	opt.TLSConfig.RootCAs = x509.NewCertPool()
	if !opt.TLSConfig.RootCAs.AppendCertsFromPEM(text) {
		return sandpit.Errorf(sandpit.Invalid, "redis certificates: %s holds none in PEM form", file)
	}
	return nil
}

// Check reports whether the server can be used: it answers, and it does not
// throw messages away when its memory is full.
func (q *Redis) Check(ctx context.Context) error {
	if _, err := q.runCommand(ctx, "stats"); err != nil {
		return err
	}
	info, err := q.client.InfoMap(ctx, "memory").Result()
	if err != nil {
		// Some providers do not report it; then the server is assumed to be fine.
		return ignoreDenied(q.wrapError(ctx, "info", err))
	}
	memory := info["Memory"]
	if policy := memory["maxmemory_policy"]; memory["maxmemory"] != "0" && strings.HasPrefix(policy, "allkeys-") {
		return sandpit.WithHint(sandpit.Errorf(sandpit.Unsupported, "redis: the server throws any key away when its memory is full (%s)", policy),
			"Set maxmemory-policy to noeviction.")
	}
	return nil
}

func ignoreDenied(err error) error {
	if errors.Is(err, sandpit.PermissionDenied) {
		return nil
	}
	return err
}

// Close closes the connections.
func (q *Redis) Close() error {
	if err := q.client.Close(); err != nil && !errors.Is(err, redis.ErrClosed) {
		return sandpit.Errorf(sandpit.Internal, "redis: close: %s", q.redactError(err))
	}
	return nil
}

// runCommand runs a command of the script. While the server cannot be reached it tries
// again, after 0.5 s, 1 s and 2 s.
func (q *Redis) runCommand(ctx context.Context, command string, args ...any) (any, error) {
	pause := firstPause
	for sent := 0; ; sent++ {
		reply, err := q.script.Run(ctx, q.client, []string{q.root}, append([]any{command, sent}, args...)...).Result()
		if err == nil {
			return reply, nil
		}
		err = q.wrapError(ctx, command, err)
		if sent == resends || !errors.Is(err, sandpit.Unavailable) {
			return nil, err
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, sandpit.Errorf(sandpit.Unavailable, "%w, and then: %w", err, ctx.Err())
		}
		pause = min(2*pause, lastPause)
	}
}

// wrapError gives an error of the client a code. The text is cleaned, so the error
// itself cannot be passed on.
func (q *Redis) wrapError(ctx context.Context, command string, err error) error {
	if ctx.Err() != nil {
		return sandpit.Errorf(sandpit.CodeOf(ctx.Err()), "redis: %s: %w", command, ctx.Err())
	}
	code := sandpit.Unavailable
	answer, answered := errors.AsType[redis.Error](err)
	_, untrusted := errors.AsType[*tls.CertificateVerificationError](err)
	switch {
	case untrusted, redis.IsAuthError(err):
		code = sandpit.Unauthenticated
	case redis.IsPermissionError(err):
		code = sandpit.PermissionDenied
	case redis.IsOOMError(err):
		code = sandpit.Exhausted
	case answered && !passingAnswer(answer):
		code = sandpit.Internal
	}
	return sandpit.Errorf(code, "redis: %s: %s", command, q.redactError(err))
}

// passingAnswer reports whether the server will answer otherwise soon.
func passingAnswer(err redis.Error) bool {
	if redis.IsLoadingError(err) || redis.IsReadOnlyError(err) || redis.IsMasterDownError(err) ||
		redis.IsClusterDownError(err) || redis.IsTryAgainError(err) || redis.IsMaxClientsError(err) || redis.IsNoReplicasError(err) {
		return true
	}
	for _, prefix := range []string{"BUSY", "MISCONF", "UNBLOCKED"} {
		if redis.HasErrorPrefix(err, prefix) {
			return true
		}
	}
	return false
}

// redactError returns an error's text, bounded and without the password: a server may
// repeat what it was sent.
func (q *Redis) redactError(err error) string {
	text := err.Error()
	if q.secret != "" {
		text = strings.ReplaceAll(text, q.secret, "[password]")
	}
	return Cause(text)
}
