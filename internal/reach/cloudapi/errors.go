package cloudapi

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"unicode"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/textlen"
)

const (
	// maxBody bounds a response, in bytes.
	maxBody = 16 << 20
	// maxText bounds the part of a message that an error repeats, in bytes.
	maxText = 500
)

// StatusError is an error that the API returned. Its text is that of the API, without secrets.
type StatusError struct {
	Status  int
	Message string
}

// Error implements error.
func (e *StatusError) Error() string { return e.Message }

// StatusOf returns the HTTP status with which the API refused a call, or 0.
func StatusOf(err error) int {
	if e, ok := errors.AsType[*StatusError](err); ok {
		return e.Status
	}
	return 0
}

// uncertainError is an error of a call that the API may have carried out.
type uncertainError struct{ error }

// Unwrap returns the error.
func (e uncertainError) Unwrap() error { return e.error }

func markUncertain(err error, uncertain bool) error {
	if !uncertain {
		return err
	}
	return uncertainError{err}
}

// MayHaveHappened reports whether the API may have carried out the call that failed with err: a
// connection broke, or a response was lost.
func MayHaveHappened(err error) bool {
	_, ok := errors.AsType[uncertainError](err)
	return ok
}

// readResponse decodes a response, or describes the failure.
func (c *Client) readResponse(call Call, res *http.Response, data []byte) (Response, *failure) {
	out := Response{res.StatusCode, res.Header}
	switch {
	case len(data) > maxBody:
		return out, c.invalidResponse(call, fmt.Sprintf("it has more than %d MiB", maxBody>>20))
	case slices.Contains(call.Expected, res.StatusCode):
		return out, nil
	case res.StatusCode/100 != 2:
		return out, c.statusFailure(call, res, data)
	case call.Into == nil:
		return out, nil
	}
	if err := json.Unmarshal(data, call.Into); err != nil {
		return out, c.invalidResponse(call, err.Error())
	}
	return out, nil
}

// invalidResponse describes a response that violates the protocol: the call may have been carried
// out.
func (c *Client) invalidResponse(call Call, why string) *failure {
	return &failure{
		uncertain: true, repeat: call.isRepeatable(),
		err: sandpit.Errorf(sandpit.Internal, "%s: invalid response of %s: %s", c.describe(call), c.base.Host, c.clean(why)),
	}
}

// statusFailure describes a response that is an error.
func (c *Client) statusFailure(call Call, res *http.Response, data []byte) *failure {
	status := &StatusError{res.StatusCode, c.clean(messageOf(data))}
	if status.Message == "" {
		status.Message = strings.TrimSpace(fmt.Sprintf("HTTP %d %s", res.StatusCode, http.StatusText(res.StatusCode)))
	}
	f := &failure{err: c.statusError(call, status)}
	switch {
	case res.StatusCode == http.StatusTooManyRequests && isQuota(strings.ToLower(status.Message)): // not before something is deleted
	case res.StatusCode == http.StatusTooManyRequests || res.StatusCode == http.StatusServiceUnavailable:
		// The API has refused the call before it did anything.
		f.repeat, f.after = true, retryAfter(res.Header)
		f.err = sandpit.WithRetry(f.err, f.after)
	case res.StatusCode >= http.StatusInternalServerError && res.StatusCode != http.StatusNotImplemented:
		f.repeat, f.uncertain = call.isRepeatable(), true
	}
	return f
}

// statusError returns the error for a status.
func (c *Client) statusError(call Call, status *StatusError) error {
	what := c.describe(call)
	lower := strings.ToLower(status.Message)
	switch status.Status {
	case http.StatusUnauthorized:
		text := "%s: %s rejects the API key: %w"
		if strings.Contains(lower, "expire") && !strings.Contains(lower, "valid") {
			text = "%s: the API key of %s has expired: %w"
		}
		return sandpit.WithHint(sandpit.Errorf(sandpit.Unauthenticated, text, what, c.o.Vendor, status), c.o.KeyHint)
	case http.StatusForbidden:
		if isQuota(lower) {
			return c.quotaError(what, status)
		}
		return sandpit.Errorf(sandpit.PermissionDenied, "%s: %s does not permit it: %w", what, c.o.Vendor, status)
	case http.StatusPaymentRequired:
		return c.quotaError(what, status)
	case http.StatusTooManyRequests:
		if isQuota(lower) {
			return c.quotaError(what, status)
		}
		return sandpit.Errorf(sandpit.Exhausted, "%s: %s limits the rate of calls: %w", what, c.o.Vendor, status)
	case http.StatusNotFound, http.StatusGone:
		code := call.Missing
		if code == "" {
			code = sandpit.NotFound
		}
		return sandpit.Errorf(code, "%s: not found: %w", what, status)
	}
	return sandpit.Errorf(codeOf(status.Status), "%s: %w", what, status)
}

func (c *Client) quotaError(what string, status *StatusError) error {
	return sandpit.WithHint(sandpit.Errorf(sandpit.Exhausted, "%s: a quota of the account at %s is used up: %w", what, c.o.Vendor, status),
		"delete sandboxes, or raise the account's limits")
}

// isQuota reports whether a message, in lower case, is about a quota of the account and not about the
// rate of calls.
func isQuota(message string) bool {
	return slices.ContainsFunc([]string{"quota", "concurrent", "maximum number", "limit exceeded", "limit reached", "credit", "billing"},
		func(word string) bool { return strings.Contains(message, word) }) && !strings.Contains(message, "rate")
}

// codeOf returns the code of a status that is an error.
func codeOf(status int) sandpit.Code {
	switch status {
	case http.StatusBadRequest, http.StatusUnprocessableEntity, http.StatusRequestEntityTooLarge, http.StatusMethodNotAllowed:
		return sandpit.Invalid
	case http.StatusConflict, http.StatusPreconditionFailed, http.StatusLocked:
		return sandpit.Conflict
	case http.StatusRequestTimeout, http.StatusGatewayTimeout:
		return sandpit.Timeout
	case http.StatusNotImplemented:
		return sandpit.Unsupported
	case http.StatusInsufficientStorage:
		return sandpit.Exhausted
	case http.StatusInternalServerError, http.StatusBadGateway, http.StatusServiceUnavailable:
		return sandpit.Unavailable
	}
	return sandpit.Internal
}

// messageOf returns the message of an error response: that of a JSON object, or plain text.
func messageOf(data []byte) string {
	var answer struct {
		Message any `json:"message"`
		Error   any `json:"error"`
		Detail  any `json:"detail"`
	}
	if json.Unmarshal(data, &answer) != nil {
		if text := strings.TrimSpace(string(data[:min(len(data), maxText)])); !strings.HasPrefix(text, "<") && !strings.HasPrefix(text, "{") {
			return text
		}
		return "" // a page for browsers
	}
	for _, value := range []any{answer.Message, answer.Detail, answer.Error} {
		switch value := value.(type) {
		case string:
			if value != "" {
				return value
			}
		case []any:
			return strings.Trim(fmt.Sprint(value), "[]")
		case map[string]any:
			if text, ok := value["message"].(string); ok {
				return text
			}
		}
	}
	return ""
}

// clean returns a text for an error: printable, bounded, and without secrets.
func (c *Client) clean(text string) string {
	for _, secret := range c.secrets {
		if len(secret) >= 4 {
			text = strings.ReplaceAll(text, secret, "[secret]")
		}
	}
	text = strings.Map(func(r rune) rune {
		switch {
		case unicode.IsPrint(r):
			return r
		case unicode.IsSpace(r):
			return ' '
		}
		return unicode.ReplacementChar
	}, strings.ToValidUTF8(text, ""))
	return textlen.Shorten(strings.TrimRight(text, ". "), maxText)
}

// causeOf returns the text of a failed request without its method and URL.
func causeOf(err error) string {
	if e, ok := errors.AsType[*url.Error](err); ok {
		err = e.Err
	}
	return err.Error()
}

func isDial(err error) bool {
	e, ok := errors.AsType[*net.OpError](err)
	return ok && e.Op == "dial"
}

func isCertificate(err error) bool {
	_, verify := errors.AsType[*tls.CertificateVerificationError](err)
	_, record := errors.AsType[tls.RecordHeaderError](err)
	return verify || record
}
