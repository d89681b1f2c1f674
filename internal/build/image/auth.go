package image

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// authenticate answers a registry's authentication challenge, unless another request has done
// so since the request with the authorization used.
func (e *endpoint) authenticate(ctx context.Context, resp *http.Response, used string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.auth != used {
		return nil
	}
	scheme, params := pickChallenge(resp.Header.Values("WWW-Authenticate"))
	if scheme == "" {
		return e.statusError(resp, nil)
	}
	login, err := e.credentials(ctx, e.registry)
	if err != nil {
		return fmt.Errorf("find the login for registry %s: %w", e.registry, err)
	}
	if scheme == "bearer" {
		e.auth, err = e.requestToken(ctx, params, login)
		return err
	}
	if login == (Credential{}) {
		return e.statusError(resp, nil)
	}
	e.auth = "Basic " + base64.StdEncoding.EncodeToString([]byte(login.User+":"+login.Password))
	return nil
}

// requestToken requests a token for pulls from the token server that the registry names.
func (e *endpoint) requestToken(ctx context.Context, params map[string]string, login Credential) (string, error) {
	realm, err := url.Parse(params["realm"])
	if err != nil || realm.Host == "" || realm.User != nil || !e.canSendLogin(realm) {
		return "", sandpit.Errorf(sandpit.PermissionDenied, "registry %s sends logins to %s, which is not a trusted address",
			e.registry, quoteName(params["realm"]))
	}
	form := url.Values{"scope": {"repository:" + e.repository + ":pull"}}
	if service := params["service"]; service != "" {
		form.Set("service", service)
	}
	var req *http.Request
	if login.Token != "" {
		form.Set("grant_type", "refresh_token")
		form.Set("refresh_token", login.Token)
		form.Set("client_id", "sandpit")
		req, err = http.NewRequestWithContext(ctx, http.MethodPost, realm.String(), strings.NewReader(form.Encode()))
	} else {
		query := realm.Query()
		maps.Copy(query, form)
		realm.RawQuery = query.Encode()
		req, err = http.NewRequestWithContext(ctx, http.MethodGet, realm.String(), nil)
	}
	if err != nil {
		return "", e.networkError(ctx, err)
	}
	switch {
	case login.Token != "":
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	case login.User != "":
		req.SetBasicAuth(login.User, login.Password)
	}
	return e.readToken(ctx, req)
}

func (e *endpoint) readToken(ctx context.Context, req *http.Request) (string, error) {
	resp, err := e.http.Do(req)
	if err != nil {
		return "", e.networkError(ctx, err)
	}
	defer func() { _ = resp.Body.Close() }() // only read
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return "", e.networkError(ctx, err)
	}
	if resp.StatusCode != http.StatusOK {
		return "", e.statusError(resp, body)
	}
	var answer struct {
		Token       string `json:"token"`
		AccessToken string `json:"access_token"`
	}
	if json.Unmarshal(body, &answer) != nil || answer.Token+answer.AccessToken == "" {
		return "", sandpit.Errorf(sandpit.Unavailable, "registry %s: the token server returned no token", e.registry)
	}
	token := answer.Token
	if token == "" {
		token = answer.AccessToken
	}
	if strings.ContainsFunc(token, func(r rune) bool { return r < '!' || r > '~' }) {
		return "", sandpit.Errorf(sandpit.Unavailable, "registry %s: the token server returned an invalid token", e.registry)
	}
	return "Bearer " + token, nil
}

// canSendLogin reports whether a login may be sent to a token server. Addresses of this
// machine or network are allowed only if the registry is there too.
func (e *endpoint) canSendLogin(realm *url.URL) bool {
	if e.canBePlain(e.host) || realm.Host == e.host {
		return true
	}
	return realm.Scheme == "https" && !isInside(realm)
}

// isInside reports whether a URL has an address of this machine or network.
func isInside(u *url.URL) bool {
	ip := net.ParseIP(u.Hostname())
	return isLoopback(u.Host) || ip != nil && (ip.IsPrivate() || ip.IsLinkLocalUnicast() || ip.IsUnspecified())
}

// pickChallenge returns the first supported challenge in the headers.
func pickChallenge(headers []string) (scheme string, params map[string]string) {
	for _, h := range headers {
		name, rest, _ := strings.Cut(strings.TrimSpace(h), " ")
		switch name = strings.ToLower(name); name {
		case "bearer":
			if params := parseParams(rest); params["realm"] != "" {
				return name, params
			}
		case "basic":
			return name, nil
		}
	}
	return "", nil
}

// parseParams parses name="value", name=value.
func parseParams(text string) map[string]string {
	params := map[string]string{}
	for {
		text = strings.TrimLeft(text, " \t,")
		name, rest, found := strings.Cut(text, "=")
		if !found {
			return params
		}
		var value string
		value, text = parseValue(rest)
		params[strings.ToLower(strings.TrimSpace(name))] = value
	}
}

// parseValue returns a value, which may be quoted, and the text after it.
func parseValue(text string) (value, rest string) {
	if !strings.HasPrefix(text, `"`) {
		if i := strings.IndexByte(text, ','); i >= 0 {
			return strings.TrimSpace(text[:i]), text[i:]
		}
		return strings.TrimSpace(text), ""
	}
	var b strings.Builder
	for i := 1; i < len(text); i++ {
		switch c := text[i]; {
		case c == '"':
			return b.String(), text[i+1:]
		case c == '\\' && i+1 < len(text):
			i++
			b.WriteByte(text[i])
		default:
			b.WriteByte(c)
		}
	}
	return b.String(), ""
}

// registryMessage returns the quoted error message in a registry's response, or "".
func registryMessage(body []byte) string {
	var answer struct {
		Errors []struct{ Code, Message string }
	}
	if json.Unmarshal(body, &answer) != nil || len(answer.Errors) == 0 {
		return ""
	}
	text := answer.Errors[0].Message
	if text == "" {
		text = answer.Errors[0].Code
	}
	if text == "" {
		return ""
	}
	return " (the registry says: " + quoteName(text) + ")"
}

// retryAfter returns the delay that a registry requests before the next attempt.
func retryAfter(h http.Header) time.Duration {
	value := h.Get("Retry-After")
	if seconds, err := strconv.ParseUint(value, 10, 16); err == nil {
		return time.Duration(seconds) * time.Second
	}
	if at, err := http.ParseTime(value); err == nil {
		return max(time.Until(at), 0)
	}
	return 0
}
