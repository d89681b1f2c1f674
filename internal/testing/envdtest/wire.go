package envdtest

import (
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"strings"

	"google.golang.org/protobuf/proto"
)

const (
	streamType = "application/connect+proto"
	unaryType  = "application/proto"
	jsonType   = "application/json"

	flagCompressed = 1
	flagEnd        = 2

	kib = 1 << 10
	mib = 1 << 20
)

// frame is a message as it travels in a stream.
func frame(flags byte, data []byte) []byte {
	b := binary.BigEndian.AppendUint32([]byte{flags}, uint32(len(data))) //nolint:gosec // a test's message is small
	return append(b, data...)
}

// encode never fails, because all messages here contain valid text.
func encode(m proto.Message) []byte {
	b, err := proto.Marshal(m)
	if err != nil {
		panic(err)
	}
	return b
}

// message sends a message of a stream.
func (c *call) message(m proto.Message) bool { return c.send(frame(0, encode(m))...) }

// stream begins a stream.
func (c *call) stream() {
	c.drain()
	c.status(http.StatusOK, "Content-Type", streamType)
}

// finish ends a stream regularly with the end message, {} without an error.
func (c *call) finish(end string) { c.send(frame(flagEnd, []byte(end))...) }

// unary answers a call with one message.
func (c *call) unary(data []byte) {
	c.drain()
	c.status(http.StatusOK, "Content-Type", unaryType)
	c.repeat(data, 1)
}

func unary(m proto.Message) func(*call) { return func(c *call) { c.unary(encode(m)) } }

func unaryBytes(make func() []byte) func(*call) { return func(c *call) { c.unary(make()) } }

// streamed returns a response with messages, further bytes, and no end.
func streamed(then func(*call), messages ...proto.Message) func(*call) {
	return func(c *call) {
		c.stream()
		for _, m := range messages {
			if !c.message(m) {
				return
			}
		}
		then(c)
	}
}

func ended(c *call)  { c.finish("{}") }
func silent(c *call) { c.silence() }
func cutOff(*call)   {} // the server ends the body without an end message

// forever sends one message again and again.
func forever(m proto.Message) func(*call) {
	return func(c *call) { c.repeat(frame(0, encode(m)), -1) }
}

// tag is the first byte of a field that has a length.
func tag(field byte) byte { return field<<3 | 2 }

// hollow is a message that repeats an empty field: two bytes to send, a whole object to store.
func hollow(field byte, size int) []byte {
	return []byte(strings.Repeat(string([]byte{tag(field), 0}), size/2))
}

// in puts data into a field.
func in(field byte, data []byte) []byte {
	b := binary.AppendUvarint([]byte{tag(field)}, uint64(len(data)))
	return append(b, data...)
}

// marks are many entries of a map from text to text, in a field.
func marks(field byte, n int) []byte {
	b := make([]byte, 0, 10*n)
	for i := range n {
		b = append(b, tag(field), 8, tag(1), 6)
		b = fmt.Appendf(b, "%06x", i)
	}
	return b
}

func repeatedly(b []byte, n int) []byte { return []byte(strings.Repeat(string(b), n)) }

// all returns a lie that answers every call.
func all(answer func(*call)) answers { return answers{"*": answer} }

// typed answers with the content type of the request.
func typed(say func(c *call)) func(*call) {
	return func(c *call) {
		c.drain()
		c.status(http.StatusOK, "Content-Type", c.r.Header.Get("Content-Type"))
		say(c)
	}
}

// wireLies are about frames and heads, in the responses to all calls.
func wireLies() map[string]answers {
	zeros := make([]byte, 64*kib)
	huge := []byte{0, 0x7f, 0xff, 0xff, 0xff}
	return map[string]answers{
		"nothing":       all(func(c *call) { c.drain() }),
		"silence":       all(silent),
		"text":          all(func(c *call) { c.drain(); _, _ = io.WriteString(c.w, "hello") }),
		"hang-up":       all(rawText("", true)),
		"garbage":       all(rawText("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", false)),
		"empty-frames":  all(typed(func(c *call) { c.send(0, 0, 0, 0, 0) })),
		"frame-2gib":    all(typed(func(c *call) { c.send(huge...); c.repeat(zeros, 1) })),
		"frame-endless": all(typed(func(c *call) { c.send(huge...); c.repeat(zeros, -1) })),
		"frame-4gib":    all(typed(func(c *call) { c.send(0, 0xff, 0xff, 0xff, 0xff); c.silence() })),
		"frame-cut":     all(typed(func(c *call) { c.send(0, 0, 0, 1, 0, 10, 2) })),
		"frame-flags":   all(typed(func(c *call) { c.send(frame(0xff, zeros)...) })),
		"frames-empty-endless": all(typed(func(c *call) {
			c.repeat(make([]byte, 64*kib-64*kib%5), -1)
		})),
		"end-endless":      all(typed(func(c *call) { c.send(2, 0x7f, 0xff, 0xff, 0xff); c.repeat([]byte(strings.Repeat("[", 64*kib)), -1) })),
		"body-endless":     all(typed(func(c *call) { c.repeat(zeros, -1) })),
		"body-slow":        all(typed(slowly)),
		"head-1mib":        all(rawText("HTTP/1.1 200 OK\r\nX: "+strings.Repeat("x", mib)+"\r\n\r\n", false)),
		"head-endless":     all(rawEndless("HTTP/1.1 200 OK\r\n", []byte(strings.Repeat("X-Header: value\r\n", kib)))),
		"head-line":        all(rawEndless("HTTP/1.1 200 ", zeros)),
		"head-silent":      all(rawText("HTTP/1.1 200 OK\r\n", false)),
		"continue-endless": all(rawEndless("", []byte(strings.Repeat("HTTP/1.1 100 Continue\r\n\r\n", 100)))),
		"hints-endless":    all(rawEndless("", []byte(strings.Repeat("HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n", 100)))),
		"switch-silent":    all(rawText("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n", false)),
		"switch-endless":   all(rawEndless("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n", zeros)),
		"two-answers":      all(rawText(strings.Repeat("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 2), false)),
		"both-lengths":     all(rawText("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", false)),
		"cookie": all(func(c *call) {
			c.drain()
			c.status(http.StatusOK, "Set-Cookie", "a=b; Domain=example.com", "Strict-Transport-Security", "max-age=31536000", "Alt-Svc", `h3=":1"`)
		}),
		"gzip-frames": all(typed(func(c *call) { c.send(frame(flagCompressed, bomb())...) })),
		"gzip-head": all(func(c *call) {
			c.drain()
			c.status(http.StatusOK, "Content-Type", c.r.Header.Get("Content-Type"), "Content-Encoding", "gzip", "Connect-Content-Encoding", "gzip")
			c.send(frame(flagCompressed, bomb())...)
		}),
		"gzip-plain": all(func(c *call) {
			c.drain()
			c.status(http.StatusOK, "Content-Type", c.r.Header.Get("Content-Type"), "Content-Encoding", "gzip")
			c.send(bomb()...)
		}),
	}
}

// slowly sends a byte now and then, so that no read is ever idle for long.
func slowly(c *call) {
	for c.send(0) {
		if !sleep(c.ctx) {
			return
		}
	}
}

// errorLies are about errors, in the responses to all calls.
func errorLies() map[string]answers {
	failed := func(status int, body func() string) answers {
		return all(func(c *call) {
			c.drain()
			// A stream reports its errors at its end, after a status of success.
			if c.r.Header.Get("Content-Type") == streamType {
				c.status(http.StatusOK, "Content-Type", streamType)
				c.repeat(frame(flagEnd, []byte(`{"error":`+body()+`}`)), 1)
				return
			}
			c.status(status, "Content-Type", jsonType)
			c.repeat([]byte(body()), 1)
		})
	}
	text := func(s string) func() string { return func() string { return s } }
	long := func() string { return strings.Repeat("long ", 8*mib/5) }
	redirect := func(to string) answers {
		return all(func(c *call) { c.drain(); c.status(http.StatusTemporaryRedirect, "Location", to) })
	}
	return map[string]answers{
		"error-no-code":    failed(http.StatusTeapot, text(`{"code":"whatever","message":"x"}`)),
		"error-number":     failed(http.StatusBadRequest, text(`{"code":-7,"message":["x"]}`)),
		"error-long":       failed(http.StatusInternalServerError, func() string { return `{"code":"internal","message":"` + long() + `"}` }),
		"error-long-code":  failed(http.StatusInternalServerError, func() string { return `{"code":"` + long() + `"}` }),
		"error-escapes":    failed(http.StatusNotFound, text(`{"code":"not_found","message":"\u001b]0;title\u0007\u001b[2J\r\nsandpit: all is well\u202e\u0000"}`)),
		"error-details":    failed(http.StatusBadRequest, func() string { return `{"code":"aborted","details":[` + strings.Repeat("{},", 4*mib/3) + `{}]}` }),
		"error-bad-detail": failed(http.StatusBadRequest, text(`{"code":"aborted","details":[{"type":"google.protobuf.Any","value":"////","debug":{}},null,7]}`)),
		"error-deep":       failed(http.StatusBadRequest, func() string { return strings.Repeat(`{"a":`, 2*mib) }),
		"error-endless": all(func(c *call) {
			c.drain()
			c.status(http.StatusInternalServerError, "Content-Type", jsonType)
			c.repeat([]byte(strings.Repeat(" ", 64*kib)), -1)
		}),
		"error-silent": all(func(c *call) {
			c.drain()
			c.status(http.StatusInternalServerError, "Content-Type", jsonType)
			c.send('{')
			c.silence()
		}),
		"end-metadata": all(typed(func(c *call) {
			c.repeat(frame(flagEnd, []byte(`{"metadata":{"a":[`+strings.Repeat(`"",`, 8*mib/3)+`""]}}`)), 1)
		})),
		"status-799":      all(func(c *call) { c.drain(); c.status(799); c.send('x') }),
		"status-204-body": all(rawText("HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\nhello", false)),
		"status-000":      all(rawText("HTTP/1.1 000 Nothing\r\n\r\n", false)),
		"redirect-self":   all(func(c *call) { c.drain(); c.status(http.StatusTemporaryRedirect, "Location", c.r.URL.Path) }),
		"redirect-file":   redirect("file:///etc/passwd"),
		"redirect-local":  redirect("http://127.0.0.1:1/"),
		"redirect-get": all(func(c *call) {
			c.drain()
			c.status(http.StatusSeeOther, "Location", "http://127.0.0.1:1/files?path=/x")
		}),
	}
}
