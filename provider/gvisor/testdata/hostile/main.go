// Command hostile is the first process of a sandbox and does all it can to harm
// the process that created the sandbox. How is the sandbox's host name; under any other name
// it is an honest guest.
package main

import (
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/sandpit-dev/sandpit/internal/inside/guest"
	"github.com/sandpit-dev/sandpit/internal/testing/envdtest"
)

const children = 100

func main() {
	mode, err := os.Hostname()
	if err != nil {
		os.Exit(1)
	}
	lie, isLie := strings.CutPrefix(mode, "lies-")
	switch {
	case isLie:
		serve(lie, -1)
	case mode == "exit":
		os.Exit(3)
	case mode == "silent":
		forever()
	case mode == "refuse":
		answerAll([]byte{guest.AnswerRefused}, nil)
	case mode == "badanswer":
		answerAll([]byte{7}, nil)
	case mode == "noanswer":
		answerAll(nil, nil)
	case mode == "garbage":
		answerAll([]byte{guest.AnswerOpen}, []byte("\xff\x00\x16\x03\x01\r\n\r\n"))
	case mode == "endless":
		answerAll([]byte("\x00HTTP/1.1 200 OK\r\n"), []byte(strings.Repeat("X-Header: value\r\n", 1000)))
	case mode == "hangup":
		answerAll([]byte{guest.AnswerOpen}, nil, hangUp)
	case mode == "floods":
		floods()
	case mode == "closes":
		_ = syscall.Close(guest.ConduitFD)
		forever()
	case mode == "deaf":
		serve("none", 1)
	case mode == "forks":
		forks()
		serve("none", -1)
	default:
		os.Exit(guest.Main())
	}
}

// forever does nothing in a way that Go does not take for a mistake.
func forever() {
	for {
		time.Sleep(time.Hour)
	}
}

// floods writes to the conduit without a reader, and sends descriptors too.
func floods() {
	rights := syscall.UnixRights(0, 1, 2)
	for {
		_ = syscall.Sendmsg(guest.ConduitFD, make([]byte, 4<<10), rights, nil, syscall.MSG_DONTWAIT)
		_ = syscall.Sendmsg(guest.ConduitFD, make([]byte, 64<<10), nil, nil, 0)
	}
}

func forks() {
	for range children {
		_, _ = syscall.ForkExec("/usr/bin/sleep", []string{"sleep", "1000"}, nil)
	}
}

func hangUp(conn net.Conn) { _ = conn.Close() }

// answerAll begins every connection in the same way, continues forever and then
// does what else there is.
func answerAll(begin, goOn []byte, then ...func(net.Conn)) {
	for conn := range connections(-1) {
		go func() {
			_, err := conn.Write(begin)
			for err == nil && goOn != nil {
				_, err = conn.Write(goOn)
			}
			for _, f := range then {
				f(conn)
			}
		}()
	}
}

// connections are those that come over the conduit, at most so many; a negative
// number means all.
func connections(most int) <-chan net.Conn {
	conns := make(chan net.Conn)
	go func() {
		message, rights := make([]byte, guest.ConduitMessage), make([]byte, syscall.CmsgSpace(4))
		for ; most != 0; most-- {
			_, n, _, _, err := syscall.Recvmsg(guest.ConduitFD, message, rights, 0)
			if err != nil {
				break
			}
			if conn, err := received(rights[:n]); err == nil {
				conns <- conn
			}
		}
	}()
	return conns
}

func received(rights []byte) (net.Conn, error) {
	messages, err := syscall.ParseSocketControlMessage(rights)
	if err != nil || len(messages) == 0 {
		return nil, errors.New("no descriptor")
	}
	fds, err := syscall.ParseUnixRights(&messages[0])
	if err != nil || len(fds) == 0 {
		return nil, errors.New("no descriptor")
	}
	f := os.NewFile(uintptr(fds[0]), "connection")
	defer f.Close()
	return net.FileConn(f)
}

// serve tells a lie to at most so many connections.
func serve(lie string, most int) {
	liar := envdtest.New(lie)
	if liar == nil {
		os.Exit(4)
	}
	server := &http.Server{Handler: liar, ReadHeaderTimeout: time.Minute, ErrorLog: log.New(io.Discard, "", 0)}
	_ = server.Serve(listener{connections(most)})
	os.Exit(5)
}

type listener struct{ conns <-chan net.Conn }

func (l listener) Accept() (net.Conn, error) {
	conn := <-l.conns
	_, _ = conn.Write([]byte{guest.AnswerOpen}) // a caller that went away hears nothing
	return conn, nil
}

func (listener) Close() error   { return nil }
func (listener) Addr() net.Addr { return &net.UnixAddr{Name: "conduit", Net: "unix"} }
