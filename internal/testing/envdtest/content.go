package envdtest

import (
	"net"
	"net/http"
	"strings"
)

const (
	download = "GET /files"
	upload   = "POST /files"
	pack     = "GET /tree"
	unpack   = "POST /tree"
	initCall = "POST /init"
)

const honestContent = "content"

// answer returns a response with a head and a body.
func answer(status int, body string, headers ...string) func(*call) {
	return func(c *call) {
		c.drain()
		c.status(status, headers...)
		c.repeat([]byte(body), 1)
	}
}

// endless returns a response with an endless body.
func endless(status int) func(*call) {
	return func(c *call) {
		c.drain()
		c.status(status)
		c.repeat(make([]byte, 64*kib), -1)
	}
}

// downloadLies are about the content of files.
func downloadLies() map[string]answers {
	get := func(answer func(*call)) answers { return answers{download: answer} }
	const head = "HTTP/1.1 200 OK\r\n"
	chunked := func(body string) answers {
		return get(rawText(head+"Transfer-Encoding: chunked\r\n\r\n"+body, false))
	}
	return map[string]answers{
		"file-short":         get(rawText(head+"Content-Length: 100\r\n\r\nshort", true)),
		"file-short-silent":  get(rawText(head+"Content-Length: 100\r\n\r\nshort", false)),
		"file-long":          get(rawText(head+"Content-Length: 2\r\n\r\nmuch longer than that", false)),
		"file-length-max":    get(rawText(head+"Content-Length: 9223372036854775807\r\n\r\nx", false)),
		"file-length-more":   get(rawText(head+"Content-Length: 99999999999999999999\r\n\r\nx", false)),
		"file-length-minus":  get(rawText(head+"Content-Length: -1\r\n\r\nx", false)),
		"file-endless":       get(endless(http.StatusOK)),
		"file-slow":          get(slowly),
		"file-silent":        get(silent),
		"file-101":           get(rawText("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\nx", false)),
		"file-204":           get(rawText("HTTP/1.1 204 No Content\r\n\r\nbody", false)),
		"file-206":           get(answer(http.StatusPartialContent, strings.Repeat("x", mib), "Content-Range", "bytes 0-1048575/1048576")),
		"file-206-other":     get(answer(http.StatusPartialContent, "x", "Content-Range", "bytes 500-500/9")),
		"file-206-garbage":   get(answer(http.StatusPartialContent, "xyz", "Content-Range", "pages -1-x/**")),
		"file-206-multipart": get(answer(http.StatusPartialContent, "--x\r\n\r\n", "Content-Type", "multipart/byteranges; boundary=x")),
		"file-206-endless":   get(endless(http.StatusPartialContent)),
		"file-206-short":     get(answer(http.StatusPartialContent, "")),
		"file-416":           get(answer(http.StatusRequestedRangeNotSatisfiable, strings.Repeat("body", mib))),
		"file-416-endless":   get(endless(http.StatusRequestedRangeNotSatisfiable)),
		"file-chunk-huge":    chunked("ffffffffffffffff\r\nx"),
		"file-chunk-garbage": chunked("zz\r\n"),
		"file-chunk-line":    get(rawEndless(head+"Transfer-Encoding: chunked\r\n\r\n", []byte(strings.Repeat("0", 64*kib)))),
		"file-chunk-many":    get(rawEndless(head+"Transfer-Encoding: chunked\r\n\r\n", []byte(strings.Repeat("1\r\nx\r\n", kib)))),
		"file-chunk-extra":   get(rawEndless(head+"Transfer-Encoding: chunked\r\n\r\n", []byte("1;"+strings.Repeat("e", 3*kib)+"\r\nx\r\n"))),
		"file-trailer":       chunked("1\r\nx\r\n0\r\nX: " + strings.Repeat("t", mib) + "\r\n\r\n"),
		"file-trailers": get(rawEndless(head+"Transfer-Encoding: chunked\r\n\r\n0\r\n",
			[]byte(strings.Repeat("X: y\r\n", kib)))),
		"file-encoding":  get(rawText(head+"Transfer-Encoding: gzip\r\n\r\nx", false)),
		"file-gzip":      get(func(c *call) { c.drain(); c.status(http.StatusOK, "Content-Encoding", "gzip"); c.send(bomb()...) }),
		"file-redirect":  get(func(c *call) { c.drain(); c.status(http.StatusFound, "Location", "file:///etc/passwd") }),
		"file-http-09":   get(rawText("just the body\n", true)),
		"file-http-3":    get(rawText("HTTP/3.7 200 OK\r\n\r\n", false)),
		"file-preface":   get(rawText("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", false)),
		"file-smuggling": get(rawText(head+"Content-Length: 0\r\nContent-Length: 0\r\nConnection: keep-alive\r\n\r\nHTTP/1.1 500 No\r\n\r\n", false)),
	}
}

// uploadLies are about data that is sent into a sandbox.
func uploadLies() map[string]answers {
	put := func(answer func(*call)) answers { return answers{upload: answer, unpack: answer} }
	undrained := func(status int, then func(*call)) func(*call) {
		return func(c *call) {
			_ = http.NewResponseController(c.w).EnableFullDuplex()
			c.status(status)
			c.send()
			then(c)
		}
	}
	waiting := func(c *call) { <-c.ctx.Done() }
	early := func(status string) func(*call) {
		return func(c *call) {
			c.raw(func(conn net.Conn) {
				_, _ = conn.Write([]byte("HTTP/1.1 " + status + "\r\nContent-Length: 0\r\n\r\n"))
				<-c.ctx.Done()
			})
		}
	}
	return map[string]answers{
		"upload-unread":        put(waiting),
		"upload-early":         put(early("200 OK")),
		"upload-early-silent":  put(undrained(http.StatusOK, waiting)),
		"upload-early-error":   put(early("507 Full")),
		"upload-early-hang-up": put(rawText("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", true)),
		"upload-silent":        put(silent),
		"upload-100mib": put(func(c *call) {
			c.drain()
			c.status(http.StatusOK, "Content-Type", jsonType)
			c.repeat([]byte(strings.Repeat("[", mib)), 100)
		}),
		"upload-endless":  put(endless(http.StatusOK)),
		"upload-redirect": put(func(c *call) { c.drain(); c.status(http.StatusPermanentRedirect, "Location", "/init") }),
		"upload-hang-up":  put(rawText("", true)),
		"upload-continue": put(rawText("HTTP/1.1 100 Continue\r\n\r\n", false)),
	}
}

// initLies are about the first call.
func initLies() map[string]answers {
	return map[string]answers{
		"init-silent":  {initCall: silent},
		"init-endless": {initCall: endless(http.StatusOK)},
		"init-redirect": {initCall: func(c *call) {
			c.drain()
			c.status(http.StatusTemporaryRedirect, "Location", "http://127.0.0.1:1/init")
		}},
		"init-length":  {initCall: rawText("HTTP/1.1 204 No Content\r\nContent-Length: 1000000000000\r\n\r\n", false)},
		"init-refused": {initCall: answer(http.StatusUnauthorized, `{"code":401,"message":"`+strings.Repeat("no ", mib)+`"}`)},
		// No lies about other calls, which creating a sandbox needs.
		"none": {},
	}
}

func panicAbort() { panic(http.ErrAbortHandler) }
