package data

import (
	"encoding/base64"
	"net/http"
	"slices"
	"strings"
)

// Only known headers are forwarded, in both directions: others could carry a credential to
// the guest, or affect browsers and proxies on the way back.
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

// maxGuestHeaders is how many headers and trailers of a guest are forwarded.
const maxGuestHeaders = 100

// copyHeaders copies the headers with the given names or prefixes.
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

// guestUserHeader returns the header that names a user of the guest, or "". The guest's
// protocol uses basic authentication without a password for that; other credentials are for
// the server.
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
