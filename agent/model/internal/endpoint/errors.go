package endpoint

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/agent/model"
	"github.com/sandpit-dev/sandpit/internal/core/pattern"
	"github.com/sandpit-dev/sandpit/internal/core/textlen"
)

var errIdle = errors.New("no data for too long")

// maxMessage bounds a vendor's text in an error, in bytes.
const maxMessage = 2000

// failure returns an error that names the host.
func (e *Endpoint) failure(code sandpit.Code, format string, args ...any) error {
	return sandpit.Errorf(code, "ask the model at %s: %w", e.host, fmt.Errorf(format, args...))
}

// connectionError returns the error of a request that has no response.
func (e *Endpoint) connectionError(ctx context.Context, err error) error {
	if ue, ok := errors.AsType[*url.Error](err); ok {
		err = ue.Err // the host is said once, and a query may have a secret
	}
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, errIdle):
		return e.failure(sandpit.Timeout, "%w (%v)", errIdle, e.calls.IdleTimeout)
	case cause != nil:
		return e.failure(sandpit.CodeOf(cause), "%w", cause)
	case errors.Is(err, context.DeadlineExceeded):
		return e.failure(sandpit.Timeout, "%w", err)
	}
	return e.failure(sandpit.Unavailable, "%s", e.redact(err.Error()))
}

// streamError returns the error of a response that has begun.
func (e *Endpoint) streamError(ctx context.Context, err error) error {
	if problem, ok := errors.AsType[*model.APIError](err); ok {
		return e.apiError(problem, 0, "")
	}
	if _, ok := errors.AsType[*sandpit.Error](err); ok {
		return e.failure(sandpit.CodeOf(err), "%w", err)
	}
	switch {
	case errors.Is(err, ErrIncomplete) && context.Cause(ctx) == nil:
		return e.failure(sandpit.Unavailable, "%w", err)
	case errors.Is(err, errTooLarge):
		return e.failure(sandpit.Internal, "%w", err)
	}
	return e.connectionError(ctx, err)
}

// InvalidEvent returns the error of an event that does not follow the protocol.
func InvalidEvent(err error) error {
	return sandpit.Errorf(sandpit.Internal, "the response violates the protocol: %w", err)
}

// responseError returns the error of a response whose status is not 200.
func (e *Endpoint) responseError(res *http.Response, content io.Reader) error {
	if res.StatusCode/100 == 3 {
		return e.failure(sandpit.Invalid, "HTTP %d: the server redirects requests; set the base URL to the final address", res.StatusCode)
	}
	// What has arrived is all there is to report.
	text, _ := io.ReadAll(io.LimitReader(content, maxProblem))
	p := parseProblem(text)
	p.Status = res.StatusCode
	for _, name := range []string{"X-Request-Id", "Request-Id", "Apim-Request-Id"} {
		if p.RequestID == "" {
			p.RequestID = e.redact(res.Header.Get(name))
		}
	}
	return e.apiError(p, retryAfter(res.Header), res.Header.Get("X-Should-Retry"))
}

// parseProblem reads the body of an error response. All vendors have a field error, some with a
// text only.
func parseProblem(text []byte) *model.APIError {
	var body struct {
		Error     json.RawMessage `json:"error"`
		Message   string          `json:"message"`
		Detail    any             `json:"detail"`
		RequestID string          `json:"request_id"`
	}
	if json.Unmarshal(text, &body) != nil {
		return &model.APIError{Message: string(text)}
	}
	p := ParseError(body.Error)
	p.RequestID = body.RequestID
	switch {
	case p.Message != "":
	case body.Message != "":
		p.Message = body.Message
	case body.Detail != nil:
		p.Message = fmt.Sprint(body.Detail)
	default:
		p.Message = string(text)
	}
	return p
}

// ParseError reads the object that describes an error, or a text that does.
func ParseError(raw json.RawMessage) *model.APIError {
	var fields struct {
		Type    string `json:"type"`
		Code    any    `json:"code"`
		Param   string `json:"param"`
		Message string `json:"message"`
	}
	if json.Unmarshal(raw, &fields) != nil {
		var text string
		if json.Unmarshal(raw, &text) != nil {
			text = string(raw)
		}
		return &model.APIError{Message: text}
	}
	p := &model.APIError{Type: fields.Type, Param: fields.Param, Message: fields.Message}
	if fields.Code != nil {
		p.Code = fmt.Sprint(fields.Code)
	}
	return p
}

// apiError returns the error for what the API reported. should is the vendor's "true" or "false",
// or "" if it has not said whether the request may be repeated.
func (e *Endpoint) apiError(p *model.APIError, after time.Duration, should string) error {
	p.Message, p.Type, p.Code, p.Param = e.redact(p.Message), e.redact(p.Type), e.redact(p.Code), e.redact(p.Param)
	code, retry := classify(p)
	err := e.failure(code, "%w", p)
	if isTooLong(p) {
		err, retry = e.failure(sandpit.Invalid, "%w: %w", model.ErrTooLong, p), false
	}
	if p.Status != 0 && should == "false" {
		retry = false
	}
	if retry || should == "true" {
		err = sandpit.WithRetry(err, after)
	} else if sandpit.Retryable(err) {
		err = e.failure(sandpit.Internal, "%w", p)
	}
	if hint := hintOf(p); hint != "" {
		err = sandpit.WithHint(err, hint)
	}
	if p.RequestID != "" {
		err = &sandpit.Error{Code: sandpit.CodeOf(err), RequestID: p.RequestID, Err: err}
	}
	return err
}

// classify returns the code of a failure, and whether the same request may succeed later.
func classify(p *model.APIError) (code sandpit.Code, retry bool) {
	kind := p.Type + " " + p.Code
	switch {
	case has(kind, "insufficient_quota", "billing"), p.Status == http.StatusPaymentRequired, has(p.Message, "credit balance is too low"):
		return sandpit.Exhausted, false
	case p.Status == http.StatusUnauthorized, p.Status == 0 && has(kind, "authentication", "invalid_api_key"):
		return sandpit.Unauthenticated, false
	case p.Status == http.StatusForbidden, p.Status == 0 && has(kind, "permission"):
		return sandpit.PermissionDenied, false
	case p.Status == http.StatusTooManyRequests, p.Status == 0 && has(kind, "rate_limit"):
		return sandpit.Exhausted, true
	case p.Status == http.StatusRequestTimeout, p.Status == http.StatusConflict:
		return sandpit.Unavailable, true
	case p.Status == http.StatusNotImplemented, p.Status == http.StatusHTTPVersionNotSupported:
		return sandpit.Unsupported, false
	case p.Status >= http.StatusInternalServerError,
		p.Status == 0 && !has(kind, "invalid_request", "not_found", "invalid_prompt", "image"):
		return sandpit.Unavailable, true
	}
	return sandpit.Invalid, false
}

// isTooLong reports whether a failure says that the conversation does not fit. Vendors and
// servers have a code or a text for it.
func isTooLong(p *model.APIError) bool {
	if p.Status != 0 && p.Status != http.StatusBadRequest && p.Status != http.StatusRequestEntityTooLarge {
		return false
	}
	return p.Status == http.StatusRequestEntityTooLarge ||
		has(p.Code+" "+p.Type, "context_length_exceeded", "exceed_context_size_error", "request_too_large") ||
		has(p.Message, "prompt is too long", "maximum context length", "context window", "exceed context limit", "available context size")
}

func hintOf(p *model.APIError) string {
	switch p.Status {
	case http.StatusUnauthorized:
		return "check the API key: llm.api_key, or the variable of the vendor"
	case http.StatusNotFound:
		return "check llm.model and llm.base_url"
	}
	return ""
}

func has(text string, parts ...string) bool {
	text = strings.ToLower(text)
	for _, part := range parts {
		if strings.Contains(text, part) {
			return true
		}
	}
	return false
}

// retryAfter returns the wait that the headers ask for. 0: none.
func retryAfter(h http.Header) time.Duration {
	if ms, err := strconv.ParseFloat(h.Get("Retry-After-Ms"), 64); err == nil && ms > 0 && ms < 1e9 {
		return time.Duration(ms * float64(time.Millisecond))
	}
	text := h.Get("Retry-After")
	if s, err := strconv.ParseFloat(text, 64); err == nil && s > 0 && s < 1e6 {
		return time.Duration(s * float64(time.Second))
	}
	if at, err := http.ParseTime(text); err == nil {
		return max(time.Until(at), 0)
	}
	return 0
}

// keys matches texts that look like keys. Vendors repeat parts of a wrong one.
var keys = pattern.New(`\b(sk|pk|key|AIza)[-_][^\s"',;]*[^\s"',;.]`)

// redact makes a text of the vendor fit for an error: in one line, bounded and without secrets.
func (e *Endpoint) redact(text string) string {
	for _, secret := range e.secrets {
		text = strings.ReplaceAll(text, secret, "[secret]")
	}
	text = keys().ReplaceAllString(text, "[secret]")
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, text)
	return textlen.Shorten(strings.TrimSpace(text), maxMessage)
}
