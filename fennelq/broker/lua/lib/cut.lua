-- The beginning of a text: at most so many bytes, and no part of a character.
local function cut(text, size)
  local start, next = string.sub(text, 1, size), string.byte(text, size + 1)
  if not next or next < 128 or next > 191 then return start end
  return (string.gsub(start, '[\192-\255][\128-\191]*$', ''))
end
