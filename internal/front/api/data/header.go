package data

import (
	"encoding/base64"
	"net/http"
	"slices"
	"strings"
)

// Headers pass by name in both directions: what is not known could carry a credential
// in, or make a browser or another proxy believe something on the way out.
var (
	requestHeaders = []string{
		"Accept", "Accept-Encoding", "Content-Encoding", "Content-Type",
		"If-Match", "If-Modified-Since", "If-None-Match", "If-Range", "If-Unmodified-Since",
		"Keepalive-Ping-Interval", "Range", "Traceparent", "Tracestate", "User-Agent",
	}
	requestPrefixes = []string{"Connect-", "Grpc-", "Sandpit-", "X-Grpc-", "X-Metadata-"}

	responseHeaders = []string{
		"Accept-Post", "Accept-Ranges", "Allow", "Content-Disposition", "Content-Encoding", "Content-Length",
		"Content-Range", "Content-Type", "Etag", "Last-Modified", "Vary",
	}
	responsePrefixes = []string{"Connect-", "Grpc-", "Sandpit-"}
)

// maxGuestHeaders bounds how many headers and trailers of a guest are passed on.
const maxGuestHeaders = 100

// copyHeaders copies the headers that are known.
func copyHeaders(to, from http.Header, names, prefixes []string) {
	count := 0
	for name, values := range from {
		if !slices.Contains(names, name) && !slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) }) {
			continue
		}
		if count += len(values); count > maxGuestHeaders {
			return
		}
		to[name] = slices.Clone(values)
	}
}

// guestUserHeader returns the header that names a user of the guest's, which is what its
// protocol has basic authentication for. Any other kind, and any password, is meant
// for us; "" is none.
func guestUserHeader(authorization string) string {
	kind, text, _ := strings.Cut(authorization, " ")
	if !strings.EqualFold(kind, "Basic") {
		return ""
	}
	raw, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return ""
	}
	i := strings.LastIndexByte(string(raw), ':')
	if i < 1 {
		return ""
	}
	return "Basic " + base64.StdEncoding.EncodeToString(raw[:i+1])
}
