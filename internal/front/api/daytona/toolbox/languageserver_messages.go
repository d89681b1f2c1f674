package toolbox

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/textproto"
	"strconv"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/memory"
)

// readMessages reads messages until one is invalid or the process ends.
func (l *languageServer) readMessages(r *bufio.Reader) error {
	for {
		size, err := readHead(r)
		if err != nil {
			return err
		}
		if err := l.account.Reserve(size * messageCost); err != nil {
			return err
		}
		text := make([]byte, size)
		message := serverMessage{size: size * messageCost}
		if _, err = io.ReadFull(r, text); err == nil && json.Unmarshal(text, &message) != nil {
			err = errServerResponse
		}
		if err == nil && l.deliver(message) {
			continue // the receiver returns the memory
		}
		l.account.Return(message.size)
		if err == nil {
			err = l.respond(message)
		}
		if err != nil {
			return err
		}
	}
}

// readHead reads the head of a message and returns the size of its body.
func readHead(r *bufio.Reader) (int64, error) {
	for size := int64(-1); ; {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return 0, sandpit.Errorf(sandpit.Unavailable, "the language server has ended: %w", err)
		}
		name, value, found := strings.Cut(strings.TrimSpace(string(line)), ":")
		switch {
		case !found && name == "" && size >= 0:
			return size, nil
		case !found:
			return 0, errServerResponse
		case textproto.CanonicalMIMEHeaderKey(name) == "Content-Length":
			size, err = strconv.ParseInt(strings.TrimSpace(value), 10, 64)
			if err != nil || size < 0 || size > maxMessage {
				return 0, sandpit.Errorf(sandpit.Exhausted, "the language server has sent a message of %.20q bytes, want at most %d", value, maxMessage)
			}
		}
	}
}

// deliver gives a response to the request that waits for it. It returns false for other messages.
func (l *languageServer) deliver(m serverMessage) bool {
	id, err := strconv.ParseInt(string(m.ID), 10, 64)
	if err != nil || m.Method != "" {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	waiting, found := l.pending[id]
	delete(l.pending, id)
	if found {
		waiting <- m // it has room for one
	}
	return found
}

const (
	// maxSettings is how many settings a language server may ask for at once, and maxRequestID bounds
	// the ID of a request of one, in bytes. Both are sent back.
	maxSettings  = 1000
	maxRequestID = 256
	// elementCost is the memory of an element of a list in a response, besides its text: as a value,
	// while the list grows, and as what it is converted to.
	elementCost = 512
)

// decode decodes the result of a request. A list takes much more memory than its text, which is
// reserved until the request of the context ends.
//
// Exhausted: there is not enough memory. Internal: the result is invalid.
func decode(ctx context.Context, raw json.RawMessage, to any) error {
	if err := memory.AccountOf(ctx).Reserve(int64(countElements(raw)) * elementCost); err != nil {
		return err
	}
	if json.Unmarshal(raw, to) != nil {
		return errServerResponse
	}
	return nil
}

// countElements returns how many elements the lists in a JSON value have at most.
func countElements(raw []byte) (n int) {
	var lists []bool // whether the value at each depth is a list
	for i := 0; i < len(raw); i++ {
		switch raw[i] {
		case '"':
			for i++; i < len(raw) && raw[i] != '"'; i++ {
				if raw[i] == '\\' {
					i++
				}
			}
		case '[', '{':
			isList := raw[i] == '['
			if lists = append(lists, isList); isList {
				n++
			}
		case ']', '}':
			lists = lists[:max(len(lists)-1, 0)]
		case ',':
			if len(lists) > 0 && lists[len(lists)-1] {
				n++
			}
		}
	}
	return n
}

// respond answers a request of the server. Settings do not exist, and the rest needs no answer
// but null. Notifications get none.
func (l *languageServer) respond(m serverMessage) error {
	if m.Method == "" || len(m.ID) == 0 {
		return nil
	}
	if len(m.ID) > maxRequestID {
		return errServerResponse
	}
	var settings struct {
		Items []struct{} `json:"items"` // which take no memory
	}
	result := json.RawMessage("null")
	if m.Method == "workspace/configuration" && json.Unmarshal(m.Params, &settings) == nil {
		if len(settings.Items) > maxSettings {
			return errServerResponse
		}
		result = json.RawMessage("[" + strings.TrimSuffix(strings.Repeat("null,", len(settings.Items)), ",") + "]")
	}
	text, err := encodeMessage(serverMessage{ID: m.ID, Result: result})
	if err == nil {
		err = l.account.Reserve(int64(len(text)))
	}
	if err != nil {
		return err
	}
	select {
	case l.out <- text: // the reader must not wait: the server may be waiting for it
		return nil
	default:
		l.account.Return(int64(len(text)))
		return sandpit.Errorf(sandpit.Unavailable, "the language server does not read its messages")
	}
}

func encodeMessage(m serverMessage) ([]byte, error) {
	m.Version = "2.0"
	text, err := json.Marshal(m)
	return append([]byte(fmt.Sprintf("Content-Length: %d\r\n\r\n", len(text))), text...), err
}

// send sends a message.
func (l *languageServer) send(ctx context.Context, m serverMessage, params any) error {
	if params != nil {
		text, err := json.Marshal(params)
		if err != nil {
			return sandpit.Errorf(sandpit.Invalid, "encode a request: %w", err)
		}
		m.Params = text
	}
	text, err := encodeMessage(m)
	if err == nil {
		err = l.account.Reserve(int64(len(text))) // until the process has read it
	}
	if err != nil {
		return err
	}
	select {
	case l.out <- text:
		return nil
	case <-l.ended:
		err = l.endError()
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	l.account.Return(int64(len(text)))
	return err
}

// notify sends a message that has no response.
func (l *languageServer) notify(ctx context.Context, method string, params any) error {
	return l.send(ctx, serverMessage{Method: method}, params)
}

// codeUnknownMethod is the code of the protocol for a request that a server does not know.
const codeUnknownMethod = -32601

var errUnknownMethod = errors.New("the language server does not support the request")

// request sends a request and returns its result. The caller calls release when it no longer uses
// the result.
func (l *languageServer) request(ctx context.Context, method string, params any) (result json.RawMessage, release func(), err error) {
	limit := l.requestTimeout()
	ctx, cancel := context.WithTimeoutCause(ctx, limit, sandpit.Errorf(sandpit.Timeout, "the language server has not responded within %v", limit))
	defer cancel()
	id, waiting := l.expectResponse()
	defer l.forgetResponse(id, waiting)
	if err := l.send(ctx, serverMessage{ID: json.RawMessage(strconv.FormatInt(id, 10)), Method: method}, params); err != nil {
		return nil, nil, err
	}
	select {
	case m := <-waiting:
		l.recordResponse(method)
		if m.Error != nil {
			l.account.Return(m.size)
			err = sandpit.Errorf(sandpit.Conflict, "the language server refuses %s: %.500s", method, m.Error.Message)
			if m.Error.Code == codeUnknownMethod {
				err = sandpit.Errorf(sandpit.Unsupported, "%s: %w", method, errUnknownMethod)
			}
			return nil, nil, err
		}
		if len(m.Result) == 0 {
			m.Result = json.RawMessage("null")
		}
		return m.Result, func() { l.account.Return(m.size) }, nil
	case <-l.ended:
		return nil, nil, l.endError()
	case <-ctx.Done():
		return nil, nil, context.Cause(ctx)
	}
}

// requestTimeout returns how long a request may take. Servers load the project, which is part of their
// start, when they are asked about it for the first time.
func (l *languageServer) requestTimeout() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.hasLoaded {
		return lspTimeout
	}
	return serverStartTimeout
}

// recordResponse records that the server has responded to a request about its project.
func (l *languageServer) recordResponse(method string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hasLoaded = l.hasLoaded || method != methodInitialize
}

// expectResponse returns the ID of a new request, and what receives its response.
func (l *languageServer) expectResponse() (id int64, waiting chan serverMessage) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last++
	waiting = make(chan serverMessage, 1)
	l.pending[l.last] = waiting
	return l.last, waiting
}

// forgetResponse ends the wait for a response, and drops one that has arrived since.
func (l *languageServer) forgetResponse(id int64, waiting chan serverMessage) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.pending, id)
	select {
	case m := <-waiting:
		l.account.Return(m.size)
	default:
	}
}
