-- A text without bytes that are not UTF-8: they are escaped as where fennelq reads other texts, because JSON may not contain them.
local function is_character(bytes)
  local first, second = string.byte(bytes, 1, 2)
  if first < 194 or first > 244 then return false end
  if #bytes ~= (first < 224 and 2 or first < 240 and 3 or 4) then return false end
  return not (first == 224 and second < 160 or first == 237 and second > 159 or first == 240 and second < 144 or first == 244 and second > 143)
end

local function utf8_text(text)
  return (string.gsub(text, '[\128-\255][\128-\191]*', function(bytes)
    if is_character(bytes) then return bytes end
    return (string.gsub(bytes, '.', function(byte) return string.format('\\x%02x', string.byte(byte)) end))
  end))
end
