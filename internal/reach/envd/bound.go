package envd

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"unicode"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/sandpit-dev/sandpit"
)

const (
	// maxMessage bounds one message of the Connect services, in bytes; lists have a larger
	// bound.
	maxMessage = 1 << 20
	maxList    = 16 << 20
	// maxObjects bounds the parts of a message: a part of two bytes can take a hundred times
	// as many bytes of memory.
	maxObjects     = 4 << 10
	maxListObjects = 256 << 10
	// maxErrorBody bounds the body of a failed response, in bytes.
	maxErrorBody = 64 << 10
	// maxErrorText bounds the guest's text in an error, in bytes.
	maxErrorText = 1 << 10
)

// clientBounds returns the options of a client whose messages have up to size bytes and
// objects parts.
func clientBounds(size, objects int) []connect.ClientOption {
	return []connect.ClientOption{
		connect.WithReadMaxBytes(size),
		connect.WithCodec(codec{objects}),
		connect.WithAcceptCompression("gzip", nil, nil), // the connection is local
	}
}

// codec is the binary form of messages, with a bound on their parts.
type codec struct{ objects int }

var errNotMessage = errors.New("not a message")

// Name implements connect.Codec.
func (codec) Name() string { return "proto" }

// IsBinary reports to connect that messages are not text.
func (codec) IsBinary() bool { return true }

// Marshal implements connect.Codec.
func (c codec) Marshal(m any) ([]byte, error) { return c.MarshalAppend(nil, m) }

// MarshalAppend is Marshal with a buffer.
func (codec) MarshalAppend(b []byte, m any) ([]byte, error) {
	msg, ok := m.(proto.Message)
	if !ok {
		return nil, errNotMessage
	}
	b, err := proto.MarshalOptions{}.MarshalAppend(b, msg)
	if err != nil { // the only possible reason
		err = sandpit.Errorf(sandpit.Invalid, "a text of this call is not UTF-8: %w", err)
	}
	return b, err
}

// Unmarshal implements connect.Codec.
func (c codec) Unmarshal(data []byte, m any) error {
	msg, ok := m.(proto.Message)
	if !ok {
		return errNotMessage
	}
	left := c.objects
	if err := countParts(data, msg.ProtoReflect().Descriptor(), &left); err != nil {
		return err
	}
	return proto.Unmarshal(data, msg)
}

// countParts subtracts the parts of a message from left: the messages in it and the members
// of lists.
func countParts(data []byte, kind protoreflect.MessageDescriptor, left *int) error {
	for len(data) > 0 {
		number, wire, n := protowire.ConsumeTag(data)
		if n < 0 {
			return protowire.ParseError(n)
		}
		data = data[n:]
		if n = protowire.ConsumeFieldValue(number, wire, data); n < 0 {
			return protowire.ParseError(n)
		}
		field := kind.Fields().ByNumber(number)
		if wire == protowire.BytesType && field != nil && (field.IsList() || field.Message() != nil) {
			if *left--; *left < 0 {
				return sandpit.Errorf(sandpit.Exhausted, "the response of the guest has too many parts")
			}
			if inner, m := protowire.ConsumeBytes(data); m > 0 && field.Message() != nil {
				if err := countParts(inner, field.Message(), left); err != nil {
					return err
				}
			}
		}
		data = data[n:]
	}
	return nil
}

// checkAnswer bounds the body of a failed response. It refuses a response that upgrades the
// connection, because the end of the caller's context would not end that.
func checkAnswer(res *http.Response) (*http.Response, error) {
	if res.StatusCode == http.StatusSwitchingProtocols {
		return nil, errors.Join(sandpit.Errorf(sandpit.Internal, "the guest upgrades the connection to another protocol"), res.Body.Close())
	}
	if res.StatusCode/100 != 2 {
		res.Body = readCloser{io.LimitReader(res.Body, maxErrorBody), res.Body}
	}
	return res, nil
}

// plainText converts a text of the guest for an error: one short line without control
// characters.
func plainText(text string) string {
	cut := ""
	if len(text) > maxErrorText {
		text, cut = text[:maxErrorText], "..."
	}
	return strings.Map(func(r rune) rune {
		switch {
		case unicode.IsPrint(r):
			return r
		case unicode.IsSpace(r):
			return ' '
		}
		return unicode.ReplacementChar
	}, strings.ToValidUTF8(text, "")) + cut
}
