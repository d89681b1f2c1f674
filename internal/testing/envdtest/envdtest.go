// Package envdtest is a dishonest guest for tests: it serves the protocol of the program inside a
// sandbox, with one violation of it. Released programs do not import it.
//
// Each violation, called a lie, has a name. All other calls get the responses of an honest guest, so
// that a caller reaches the lie.
package envdtest

import (
	"context"
	"maps"
	"net"
	"net/http"
	"path"
	"slices"
	"time"
)

// answers are handlers by call: the last part of a Connect call's path such as "Stat", or the method
// and path of another call such as "GET /files". "*" is for all calls.
type answers map[string]func(*call)

// Liar is a dishonest guest, as an http.Handler. It serves any number of connections.
type Liar struct {
	lie    answers
	honest answers
	ctx    context.Context //nolint:containedctx // ends with Close
	cancel context.CancelFunc
}

// Lies returns the sorted names of all lies. They consist of lower-case letters, digits and hyphens,
// so that each can be a host name.
func Lies() []string { return slices.Sorted(maps.Keys(lies())) }

// New returns a Liar with the named lie, or nil if the lie does not exist. The caller must Close it
// before its server.
func New(lie string) *Liar {
	told, ok := lies()[lie]
	if !ok {
		return nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	return &Liar{lie: told, honest: allHonest(), ctx: ctx, cancel: cancel}
}

func lies() map[string]answers {
	all := make(map[string]answers)
	for _, some := range []map[string]answers{
		wireLies(), errorLies(), processLies(), listLies(), followLies(), commandLies(), entryLies(), watchLies(), downloadLies(), uploadLies(), treeLies(), initLies(),
	} {
		maps.Copy(all, some)
	}
	return all
}

// Close ends all responses under way. It is idempotent.
func (l *Liar) Close() { l.cancel() }

// ServeHTTP implements http.Handler.
func (l *Liar) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	stop := context.AfterFunc(l.ctx, cancel)
	defer stop()
	c := &call{w: w, r: r, ctx: ctx}
	for _, a := range []answers{l.lie, l.honest} {
		for _, key := range []string{path.Base(r.URL.Path), r.Method + " " + r.URL.Path, "*"} {
			if answer := a[key]; answer != nil {
				answer(c)
				return
			}
		}
	}
	http.NotFound(w, r)
}

// pace is the rate of endless data, in bytes per second: enough to see it grow, too little to fill a
// disk.
const pace = 256 << 20

// call is one call to answer.
type call struct {
	w   http.ResponseWriter
	r   *http.Request
	ctx context.Context //nolint:containedctx // ends with the call or the Liar
}

// silence sends nothing until the caller gives up.
func (c *call) silence() {
	c.drain()
	<-c.ctx.Done()
}

// drain reads the request, which is necessary to notice its end.
func (c *call) drain() {
	buf := make([]byte, 64<<10)
	for c.ctx.Err() == nil {
		if _, err := c.r.Body.Read(buf); err != nil {
			return
		}
	}
}

// send sends bytes now, and reports whether the caller is still connected.
func (c *call) send(b ...byte) bool {
	if c.ctx.Err() != nil {
		return false
	}
	if _, err := c.w.Write(b); err != nil {
		return false
	}
	return http.NewResponseController(c.w).Flush() == nil
}

// repeat sends b a number of times at the pace, or forever if times is negative. It reports whether the
// caller is still connected.
func (c *call) repeat(b []byte, times int) bool {
	start, sent := time.Now(), 0
	for ; times != 0; times-- {
		if !c.send(b...) {
			return false
		}
		sent += len(b)
		due := time.Duration(float64(sent) / pace * float64(time.Second))
		if ahead := due - time.Since(start); ahead > time.Millisecond {
			time.Sleep(ahead)
		}
	}
	return true
}

// status sends the head of a response with pairs of headers.
func (c *call) status(code int, headers ...string) {
	for i := 0; i+1 < len(headers); i += 2 {
		c.w.Header()[headers[i]] = []string{headers[i+1]}
	}
	c.w.WriteHeader(code)
}

// raw takes over the connection, without the rules of HTTP.
func (c *call) raw(say func(conn net.Conn)) {
	conn, buffered, err := http.NewResponseController(c.w).Hijack()
	if err != nil {
		return
	}
	defer conn.Close()
	stop := context.AfterFunc(c.ctx, func() { _ = conn.Close() })
	defer stop()
	size := max(0, c.r.ContentLength)
	_, _ = buffered.Discard(min(buffered.Reader.Buffered(), int(size)))
	say(conn)
}

// rawText sends literal text, and then stays silent or closes the connection.
func rawText(text string, hangUp bool) func(*call) {
	return func(c *call) {
		c.raw(func(conn net.Conn) {
			if _, err := conn.Write([]byte(text)); err != nil || hangUp {
				return
			}
			untilClosed(conn)
		})
	}
}

// rawEndless sends a head and then the same bytes forever.
func rawEndless(head string, b []byte) func(*call) {
	return func(c *call) {
		c.raw(func(conn net.Conn) {
			_, err := conn.Write([]byte(head))
			for err == nil {
				_, err = conn.Write(b)
				time.Sleep(time.Duration(len(b)) * time.Second / pace)
			}
		})
	}
}

func untilClosed(conn net.Conn) {
	buf := make([]byte, 4<<10)
	for {
		if _, err := conn.Read(buf); err != nil {
			return
		}
	}
}
